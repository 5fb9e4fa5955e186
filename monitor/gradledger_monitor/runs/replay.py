"""A stored run judged once more, in memory: with other thresholds, or to see that it comes out."""

from __future__ import annotations

from gradledger_monitor.evaluation.engine import Engine
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.evaluation import pending
from gradledger_monitor.store.runs import dump


class CannotReplay(LookupError):
    """Records of the run were given up to make room."""


def replay(store: Store, run: str, choices: RuleOverrides) -> EvaluationResult:
    """What the rules say under these choices of every step judged so far; nothing is written.

    Raises ``UnknownRun`` and ``CannotReplay``. What the judge noted while no step came stays as it
    was noted: when a run counts as standing still is decided while it does.
    """
    if last := dump.last_pruned_step(store, run):
        why = f"what the ranks sent up to step {last} was removed to make room (keep_detail_days)"
        raise CannotReplay(f"run {run!r} cannot be judged again: {why}")
    at = pending.run_status(store, run)
    fold = RunState(Engine(at.info, choices=choices), at.generation)
    fold.silences = at.inactivity
    fold.engine.evaluated(pending.eval_metrics(store, at))
    for optimizer, last in at.progress.items():
        more = last > 0
        while more:
            after = fold.at.reached.get(optimizer, 0)
            arrived, more = pending.next_steps(store, at, optimizer, after, last)
            for step in arrived:
                fold.see(at.info, step)
        fold.hear_silence(optimizer)
    return fold.engine.evaluation()
