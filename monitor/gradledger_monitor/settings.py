"""Every setting of the service, from ``GRADLEDGER_*`` environment variables."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from gradledger_monitor.paths import data_folder


def default_database() -> str:
    """The embedded database, which needs nothing installed."""
    return f"sqlite:///{data_folder() / 'gradledger.db'}"


class Settings(BaseSettings):
    """What a person may change about the service."""

    model_config = SettingsConfigDict(env_prefix="GRADLEDGER_", extra="ignore")

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
