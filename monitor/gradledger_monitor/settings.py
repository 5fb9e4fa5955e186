"""Every setting of the service, from ``GRADLEDGER_*`` environment variables."""

from __future__ import annotations

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from typing_extensions import Self

from gradledger_monitor.paths import data_folder
from gradledger_monitor.rules.choices import Choices
from gradledger_monitor.rules.manual import signatures


def default_database() -> str:
    """The embedded database, which needs nothing installed."""
    return f"sqlite:///{data_folder() / 'gradledger.db'}"


class RuleSettings(BaseSettings):
    """What a person may change about the rules, in the service and in ``gradledger check``."""

    model_config = SettingsConfigDict(env_prefix="GRADLEDGER_", extra="ignore")

    rules_off: list[str] = Field(
        default_factory=list, description="Rules that are not asked, as patterns: clip.*"
    )
    thresholds: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="Thresholds of rules, by rule and name, as JSON."
    )

    @model_validator(mode="after")
    def _are_about_rules(self) -> Self:
        self.choices.check(signatures())
        return self

    @property
    def choices(self) -> Choices:
        """What was chosen about the rules."""
        return Choices(tuple(self.rules_off), self.thresholds)


class Settings(RuleSettings):
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
    ingest_workers: int = Field(
        default=4, ge=1, description="Batches decoded and stored at one time."
    )
    rank_timeout: float = Field(
        default=30.0, ge=0, description="Seconds that a step waits for the ranks it still misses."
    )
    judge_interval: float = Field(
        default=1.0,
        gt=0,
        description="Seconds between looks for records that another process stored.",
    )
