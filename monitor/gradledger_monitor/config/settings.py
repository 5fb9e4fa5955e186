"""Every setting of the service; ``sources.py`` says where their values come from."""

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

Words = Annotated[list[str], NoDecode]  # in the environment: a,b,c
Key = Annotated[SecretStr, Field(min_length=32)]


def default_database() -> str:
    """The embedded database, which needs nothing installed."""
    return f"sqlite:///{data_folder() / 'gradledger.db'}"


class RuleSettings(BaseSettings):
    """What a person may change about the rules, in the service and in ``gradledger check``."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore")

    rules_off: list[str] = Field(
        default_factory=list, description="Rules that are not asked, as patterns: clip.*"
    )
    thresholds: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="Thresholds of rules, by rule and name, as JSON."
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
        """Ours, in the order in which they decide."""
        return sources(settings_cls, init_settings, setting_names)

    @model_validator(mode="after")
    def _are_about_rules(self) -> Self:
        self.rule_overrides.check(rules_by_id())
        return self

    @property
    def rule_overrides(self) -> RuleOverrides:
        """What was chosen about the rules."""
        return RuleOverrides(tuple(self.rules_off), self.thresholds)


class Settings(AlertSettings, RuleSettings):
    """What a person may change about the service."""

    db: str = Field(default_factory=default_database, description="SQLAlchemy URL of the database.")
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(
        default=4777, ge=0, le=65_535, description="Port to listen on; 0 takes a free one."
    )
    max_body_bytes: int = Field(
        default=32 * 2**20,
        gt=0,
        description="Largest batch of records, sent and after decompression.",
    )
    max_batch_lines: int = Field(
        default=50_000, gt=0, description="Most lines of one batch of records."
    )
    max_batch_memory: int = Field(
        default=256 * 2**20,
        gt=0,
        description="Most bytes of memory that the decoded records of one batch may take, as "
        "estimated from its brackets and commas.",
    )
    max_batch_seconds: float = Field(
        default=2.0,
        gt=0,
        description="Most seconds that decoding a batch may take, and that storing it may take.",
    )
    ingest_workers: int = Field(
        default=4, ge=1, description="Batches decoded and stored at one time."
    )
    ingest_queue_bytes: int = Field(
        default=256 * 2**20,
        gt=0,
        description="Bytes of batches, as sent, that may be in memory; then senders must wait.",
    )
    database_wait: float = Field(
        default=2.5,
        gt=0,
        description="Seconds to wait for a database that another process has locked; then senders "
        "get status 503 and try again.",
    )
    max_connections: int = Field(
        default=0,
        ge=0,
        description="Most connections at one time; a further one replaces the connection that has "
        "been idle for longest. 0: as many as the limit on open files allows.",
    )
    connections_per_client: int = Field(
        default=0,
        ge=0,
        description="Most connections from one address at one time, trusted proxies excepted. 0: "
        "half of all.",
    )
    header_timeout: float = Field(
        default=10.0, gt=0, description="Seconds in which the header of a request must arrive."
    )
    body_timeout: float = Field(
        default=20.0,
        gt=0,
        description="Seconds in which the body of a request must arrive, and one more for each "
        "`GRADLEDGER_BODY_MIN_RATE` bytes of it.",
    )
    body_min_rate: int = Field(
        default=500, gt=0, description="Bytes a second at which a body must arrive in the long run."
    )
    idle_timeout: float = Field(
        default=15.0,
        gt=0,
        description="Seconds that a connection stays open between two requests.",
    )
    send_timeout: float = Field(
        default=60.0,
        gt=0,
        description="Seconds in which a client must take something of an answer. Streams of "
        "events last as long as they are read.",
    )
    rank_timeout: float = Field(
        default=30.0, ge=0, description="Seconds that a step waits for the ranks it still misses."
    )
    evaluation_interval: float = Field(
        default=1.0,
        gt=0,
        description="Seconds between looks for records that another process stored.",
    )
    keep_detail_days: float = Field(
        default=30.0,
        ge=0,
        description="Days for which what each rank sent is kept; around findings for ever. 0: all.",
    )
    keep_steps_days: float = Field(
        default=365.0,
        ge=0,
        description="Days for which single steps are kept; then the lowest, mean and highest of "
        "64 together. 0: all.",
    )
    access: Literal["auto", "open", "token"] = Field(
        default="auto",
        description="Who may use it: open to all who reach it, whoever shows a token, or auto: "
        "open on this machine's own addresses with the embedded database, else by token.",
    )
    admin_token: Key | None = Field(
        default=None,
        description="A token that may do everything, beside those in the database; at least 32 "
        "characters.",
    )
    allowed_hosts: Words = Field(
        default_factory=list,
        description="Names under which browsers may ask for it, beside addresses and localhost; "
        "* allows all.",
    )
    trusted_proxies: Words = Field(
        default_factory=list,
        description="Addresses or networks of proxies that may say who the client is.",
    )
    reads_per_second: float = Field(
        default=100, ge=0, description="Requests a caller may make, but for records; 0: any."
    )
    batches_per_second: float = Field(
        default=5_000, ge=0, description="Batches of records a caller may send; 0: any."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="warning", description="The least of what is logged; info has every request."
    )
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto", description="One JSON object a line, or text; auto: text on a terminal."
    )

    @field_validator("allowed_hosts", "trusted_proxies", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return value.replace(",", " ").split() if isinstance(value, str) else value

    @property
    def base_url(self) -> str:
        """Where people reach the service."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.public_url or f"http://{host}:{self.port}"

    @property
    def requires_token(self) -> bool:
        """Whether callers must show a token."""
        if self.access == "auto":
            embedded = make_url(self.db).get_backend_name() == "sqlite"
            return not (embedded and is_loopback(self.host))
        return self.access == "token"


def setting_names() -> set[str]:
    """Every setting that a configuration file may name."""
    return set(Settings.model_fields)
