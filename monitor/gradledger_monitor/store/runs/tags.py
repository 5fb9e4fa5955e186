"""Tags of runs: those that the script told in its configuration, and those that people added."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, delete

from gradledger_monitor.store import dialects
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import require_run
from gradledger_monitor.store.tables import tags

LONGEST = 64
MOST = 32


def of_config(config: dict[str, Any]) -> list[str]:
    """What a configuration says under ``tags``: a list, or one text with commas."""
    said = config.get("tags")
    words = said.split(",") if isinstance(said, str) else said if isinstance(said, list) else []
    clean = (" ".join(str(word).replace("\0", "").split())[:LONGEST] for word in words)
    return list(dict.fromkeys(word for word in clean if word))[:MOST]


def write(connection: Connection, run: int, words: Iterable[str]) -> None:
    """Add tags to a run, by key."""
    rows = [{"run": run, "tag": word} for word in words]
    if rows:
        connection.execute(dialects.insert(connection, tags).on_conflict_do_nothing(), rows)


def add(store: Store, run: str, word: str) -> None:
    """Add one. Raises ``UnknownRun``; an empty word adds nothing."""
    with store.writing() as connection:
        write(connection, require_run(connection, run).key, of_config({"tags": [word]}))


def remove(store: Store, run: str, word: str) -> None:
    """Take one away. Raises ``UnknownRun``."""
    with store.writing() as connection:
        key = require_run(connection, run).key
        connection.execute(delete(tags).where(tags.c.run == key, tags.c.tag == word))
