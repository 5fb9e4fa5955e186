"""Which code a run trained: the commit, and the files that differed from it (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SHORT = 10  # characters of a commit that a text shows
CLEAN = "no"  # what the hooks record where no file differs


@dataclass(frozen=True)
class Revision:
    """As the hooks recorded it, in the environment of a run."""

    commit: str | None = None
    dirty: str | None = None  # "no", or the files that differ; None if not known

    @property
    def text(self) -> str:
        """``commit 1a2b3c4d5e with uncommitted changes: train.py``; "" without a commit."""
        if self.commit is None:
            return ""
        changed = self.dirty if self.dirty not in (None, CLEAN) else ""
        return f"commit {self.commit[:SHORT]}" + (
            f" with uncommitted changes: {changed}" if changed else ""
        )


NOT_KNOWN = Revision()


def revision_of(environment: Mapping[str, str]) -> Revision:
    """The revision in the environment of a run."""
    return Revision(environment.get("commit") or None, environment.get("dirty") or None)
