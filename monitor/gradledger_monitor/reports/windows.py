"""Steps of a run as the rules saw them, read again from the stored records."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gradledger_monitor.evaluation.quarantine import CannotEvaluate, evaluating
from gradledger_monitor.model.step_facts import RecordsByRank, RunInfo, merge
from gradledger_monitor.rules.balance.patterns import Closed
from gradledger_monitor.rules.rule import HISTORY, Window
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.steps.curves import Span
from gradledger_monitor.store.steps.records import recent_records, spread_records

RECENT = 50  # steps, as many as the rules average over
MOST_RECORDS = 1_024  # that a page reads, over all ranks


@dataclass(frozen=True)
class RecentSteps:
    """The last steps of one optimizer: the records of all ranks by step, and the windows."""

    records: Mapping[int, RecordsByRank]
    windows: list[Window]


def recent_steps(
    store: Store, run: str, optimizer: int, last: int, most: int = RECENT
) -> RecentSteps:
    """The last steps up to ``last``, ascending; those whose records are pruned are left out."""
    info = queries.run_info(store, run)
    records = recent_records(store, run, optimizer, last, steps_in_memory(info, most))
    return RecentSteps(records, list(_windows(info, optimizer, records)))


def recent_windows(
    store: Store, run: str, optimizer: int, last: int, most: int = RECENT
) -> list[Window]:
    """The windows of the last steps up to ``last``."""
    return recent_steps(store, run, optimizer, last, most).windows


def steps_in_memory(info: RunInfo, most: int = RECENT) -> int:
    """How many steps a page may read: ``most``, or fewer if the run has many ranks."""
    return max(1, min(most, MOST_RECORDS // info.world_size))


def at_step(windows: Iterable[Window], optimizer: int, step: int) -> Window | None:
    """The window of a step among those that were read."""
    of_step = (w for w in windows if (w.facts.optimizer, w.facts.step) == (optimizer, step))
    return next(of_step, None)


def spread_windows(store: Store, run: str, span: Span, most: int) -> list[Window]:
    """Windows spread evenly over a span of steps, ends included. Each knows nothing of others."""
    info = queries.run_info(store, run)
    records = spread_records(store, run, span, steps_in_memory(info, most))
    return list(_windows(info, span.optimizer, records, history=0))


def _windows(
    info: RunInfo, optimizer: int, by_step: Mapping[int, RecordsByRank], history: int = HISTORY
) -> Iterator[Window]:
    past: deque[Closed] = deque(maxlen=history)
    for step, records in by_step.items():
        try:
            with evaluating(step):
                window = Window(merge(info, optimizer, step, records), tuple(past))
        except CannotEvaluate:
            continue
        past.append(window.closed())
        yield window
