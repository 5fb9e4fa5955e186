"""Every setting of the service; ``sources.py`` defines where the values come from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from sqlalchemy import make_url
from typing_extensions import Self

from gradledger_monitor.alerts.settings import AlertSettings
from gradledger_monitor.common.hosts import is_loopback
from gradledger_monitor.common.paths import data_folder
from gradledger_monitor.config.sources import PREFIX, sources
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.rules.overrides import RuleOverrides

NameList = Annotated[list[str], NoDecode]  # in the environment: a,b,c
AdminToken = Annotated[SecretStr, Field(min_length=32)]


def default_database() -> str:
    """The URL of the embedded SQLite database."""
    return f"sqlite:///{data_folder() / 'gradledger.db'}"


class RuleSettings(BaseSettings):
    """Settings of the rules, in the service and in ``gradledger check``."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore")

    rules_off: list[str] = Field(
        default_factory=list, description="Disabled rules, as patterns: `clip.*`"
    )
    thresholds: dict[str, dict[str, float]] = Field(
        default_factory=dict,
        description='Thresholds of rules as JSON, by rule and name: `{"norm.spike": {"z": 6}}`',
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources of ``sources.py``, in descending precedence."""
        return sources(settings_cls, init_settings, setting_names)

    @model_validator(mode="after")
    def _are_about_rules(self) -> Self:
        self.rule_overrides.check(rules_by_id())
        return self

    @property
    def rule_overrides(self) -> RuleOverrides:
        """The disabled rules and the changed thresholds."""
        return RuleOverrides(tuple(self.rules_off), self.thresholds)


class Settings(AlertSettings, RuleSettings):
    """All settings of the service."""

    db: str = Field(default_factory=default_database, description="SQLAlchemy URL of the database.")
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(
        default=4777, ge=0, le=65_535, description="Port to listen on; 0 = a free port."
    )
    max_body_bytes: int = Field(
        default=32 * 2**20,
        gt=0,
        description="Maximum size of one batch of records in bytes, as sent and after "
        "decompression.",
    )
    max_batch_lines: int = Field(
        default=50_000, gt=0, description="Maximum number of lines in one batch of records."
    )
    max_batch_memory: int = Field(
        default=256 * 2**20,
        gt=0,
        description="Maximum memory in bytes of the decoded records of one batch, estimated from "
        "its brackets and commas before decoding.",
    )
    max_batch_seconds: float = Field(
        default=2.0,
        gt=0,
        description="Timeout for decoding one batch, and again for storing it, in seconds.",
    )
    ingest_workers: int = Field(
        default=4, ge=1, description="Number of batches decoded and stored concurrently."
    )
    ingest_queue_bytes: int = Field(
        default=256 * 2**20,
        gt=0,
        description="Maximum size in bytes of all batches in memory, as sent; further senders get "
        "status 429 and retry.",
    )
    database_timeout: float = Field(
        default=2.5,
        gt=0,
        description="Timeout in seconds for a database that another process has locked; then "
        "senders get status 503 and retry.",
    )
    max_connections: int = Field(
        default=0,
        ge=0,
        description="Maximum number of connections; a further one replaces the connection that "
        "has been idle for longest. 0 = as many as the limit on open files allows.",
    )
    connections_per_client: int = Field(
        default=0,
        ge=0,
        description="Maximum number of connections from one address, except trusted proxies. 0 = "
        "half of all.",
    )
    header_timeout: float = Field(
        default=10.0, gt=0, description="Timeout for the headers of a request, in seconds."
    )
    body_timeout: float = Field(
        default=20.0,
        gt=0,
        description="Timeout for the body of a request in seconds, plus one second for each "
        "`GRADLEDGER_BODY_MIN_RATE` bytes of it.",
    )
    body_min_rate: int = Field(
        default=500,
        gt=0,
        description="Minimum average rate at which a body must arrive, in bytes per second.",
    )
    idle_timeout: float = Field(
        default=15.0,
        gt=0,
        description="Seconds that a connection stays open between two requests.",
    )
    send_timeout: float = Field(
        default=60.0,
        gt=0,
        description="Seconds in which a client must read a part of a response. Event streams stay "
        "open as long as they are read.",
    )
    rank_timeout: float = Field(
        default=30.0,
        ge=0,
        description="Seconds that a step waits for the records of missing ranks.",
    )
    evaluation_interval: float = Field(
        default=1.0,
        gt=0,
        description="Interval in seconds at which the evaluator polls for records that another "
        "process stored.",
    )
    keep_detail_days: float = Field(
        default=30.0,
        ge=0,
        description="Retention of the records of each rank, in days; records around findings are "
        "kept forever. 0 = keep everything.",
    )
    keep_steps_days: float = Field(
        default=365.0,
        ge=0,
        description="Retention of single steps, in days; after that, the minimum, mean and "
        "maximum of every 64 steps are kept. 0 = keep everything.",
    )
    access: Literal["auto", "open", "token"] = Field(
        default="auto",
        description="Who may use the service. `open`: everyone who can reach it. `token`: callers "
        "with a token. `auto`: open on a loopback address with the embedded database, else token.",
    )
    admin_token: AdminToken | None = Field(
        default=None,
        description="A token with all scopes, in addition to the tokens in the database; at least "
        "32 characters.",
    )
    allowed_hosts: NameList = Field(
        default_factory=list,
        description="Host names under which browsers may reach the service, in addition to IP "
        "addresses and localhost; `*` = all.",
    )
    trusted_proxies: NameList = Field(
        default_factory=list,
        description="Addresses or networks of proxies whose X-Forwarded-For and -Proto headers are "
        "trusted.",
    )
    reads_per_second: float = Field(
        default=100,
        ge=0,
        description="Per-caller rate limit in requests per second, ingest excluded; 0 = unlimited.",
    )
    batches_per_second: float = Field(
        default=5_000,
        ge=0,
        description="Per-caller rate limit of ingest in batches per second; 0 = unlimited.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="warning", description="Minimum log level; `info` includes access logs."
    )
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto",
        description="Log format: `json` (one object per line) or `text`; `auto` = text on a "
        "terminal, else JSON.",
    )

    @field_validator("allowed_hosts", "trusted_proxies", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return value.replace(",", " ").split() if isinstance(value, str) else value

    @property
    def base_url(self) -> str:
        """The URL under which people reach the service."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.public_url or f"http://{host}:{self.port}"

    @property
    def requires_token(self) -> bool:
        """Whether callers need a token."""
        if self.access == "auto":
            embedded = make_url(self.db).get_backend_name() == "sqlite"
            return not (embedded and is_loopback(self.host))
        return self.access == "token"


def setting_names() -> set[str]:
    """The names of all settings."""
    return set(Settings.model_fields)
