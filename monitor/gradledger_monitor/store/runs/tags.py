"""Tags of runs: from the configuration of the script, and added by people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, delete

from gradledger_monitor.store import dialects
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import require_run
from gradledger_monitor.store.tables import tags

LONGEST = 64
ARCHIVED = "archived"  # the tag of runs that lists leave out, unless they filter by it
MOST = 32


def of_config(config: dict[str, Any]) -> list[str]:
    """The tags of a configuration: ``tags`` is a list, or a text with commas."""
    value = config.get("tags")
    words = value.split(",") if isinstance(value, str) else value
    words = words if isinstance(words, list) else []
    clean = (" ".join(str(word).replace("\0", "").split())[:LONGEST] for word in words)
    return list(dict.fromkeys(word for word in clean if word))[:MOST]


def write(connection: Connection, run: int, words: Iterable[str]) -> None:
    """Add tags to a run, by key."""
    rows = [{"run": run, "tag": word} for word in words]
    if rows:
        connection.execute(dialects.insert(connection, tags).on_conflict_do_nothing(), rows)


def add(store: Store, run: str, word: str) -> None:
    """Add a tag. Raises ``UnknownRun``; an empty word adds nothing."""
    with store.writing() as connection:
        write(connection, require_run(connection, run).key, of_config({"tags": [word]}))


def remove(store: Store, run: str, word: str) -> None:
    """Remove a tag. Raises ``UnknownRun``."""
    with store.writing() as connection:
        key = require_run(connection, run).key
        connection.execute(delete(tags).where(tags.c.run == key, tags.c.tag == word))
