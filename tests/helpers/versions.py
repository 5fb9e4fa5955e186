"""Tables as an older version of the service had them."""

from __future__ import annotations

from alembic import command
from alembic.config import Config

from gradledger_monitor.common.paths import migrations_folder
from gradledger_monitor.store.database import Store


def to_version(store: Store, version: str) -> None:
    """Downgrade the tables; ``store.migrate()`` upgrades them again."""
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    with store.writing() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, version)
