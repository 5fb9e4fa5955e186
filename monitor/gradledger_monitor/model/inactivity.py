"""A run in which no optimizer step ends, as the service observes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Inactivity:
    """No step has ended for ``seconds``, at the time of the observation: a record like others."""

    seconds: float  # since the last step arrived
    silent: list[int]  # ranks without a recent heartbeat
    backwards: int | None  # since that step, on the rank with most of them; None if not known
