"""The evaluator: takes runs with new records, feeds their steps to the rules, stores the result.

The clock of the service is here: how long a step waits for its ranks, and when a run is inactive.
Rules never see it. What is held in memory is only a cache: the stored records alone give the same
result. Of several processes on one database, one at a time evaluates a run.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from sqlalchemy.exc import DatabaseError

from gradledger_monitor.common import clock
from gradledger_monitor.evaluation.evaluated_step import EvaluatedStep, OptimizerStep
from gradledger_monitor.evaluation.evaluator_version import stamp, version
from gradledger_monitor.evaluation.feed import RankWait, StepBatch, feed, next_live_batch
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.evaluation import pending, snapshots
from gradledger_monitor.store.evaluation.claims import claims_for
from gradledger_monitor.store.evaluation.pending import RunStatus
from gradledger_monitor.store.evaluation.results import (
    EvaluationConflict,
    EvaluationUpdate,
    commit,
    save_snapshot,
)
from gradledger_monitor.store.failures import is_outage, log_failure
from gradledger_monitor.store.runs import attempts
from gradledger_monitor.store.runs.queries import UnknownRun
from gradledger_monitor.workers import evaluation_restore

log = logging.getLogger(__name__)

RUNS_IN_MEMORY = 128
QUARANTINE = 60.0  # seconds until a run whose evaluation failed is evaluated again, at first
LONGEST_QUARANTINE = 3_600.0  # each further failure doubles the time, up to this
# A step that arrives later than this after its end is of a log or a spool, not of a live run: the
# time since then does not show that training is inactive.
LIVE_DELAY = 600.0
ABSENCE_TIMEOUT = 5.0  # seconds that a step waits for a rank that never sent anything
SKIPPING_TIMEOUT = 300.0  # seconds without a step before a run that skips steps can be inactive
HEARTBEATS_LOST = 35.0  # seconds without one of the heartbeats, which are sent every ten


class EvaluationFailed(RuntimeError):
    """Runs could not be evaluated, by an error of gradledger, which is logged."""


@dataclass(frozen=True)
class Quarantine:
    """The evaluation of a run failed: it is not tried again for a while, so that it does not hold
    up other runs."""

    seconds: float
    until: float  # Unix seconds


@dataclass(frozen=True)
class EvaluationPass:
    """The result of one evaluation pass over a run, for listeners."""

    run: str
    reached: dict[int, int]  # last evaluated step of the optimizers that had steps
    evaluation: EvaluationResult | None  # None while steps are evaluated again after a rewind
    steps: int
    seconds: float  # that the rules took
    quarantined: int = 0  # of the steps


class Evaluator:
    """Evaluates the runs of one store, in its thread or when called."""

    def __init__(
        self,
        store: Store,
        rank_timeout: float = 30.0,
        interval: float = 1.0,
        listener: Callable[[EvaluationPass], None] | None = None,
        now: Callable[[], float] = clock.now,
        overrides: Callable[[], RuleOverrides] = RuleOverrides,
        yield_to_ingest: Callable[[], None] = lambda: None,
    ) -> None:
        version()  # now, because an upgrade may replace the files below a running process
        self._store = store
        self._rank_timeout = rank_timeout
        self._interval = interval
        self._listener = listener
        self._now = now
        self._read_overrides = overrides
        self._overrides = RuleOverrides()
        self._overrides_revision: int | None = None
        self._yield_to_ingest = yield_to_ingest
        self._claims = claims_for(store)
        self._states: OrderedDict[str, RunState] = OrderedDict()
        self._quarantined: dict[str, Quarantine] = {}
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="gradledger-evaluator", daemon=True)

    # ------------------------------------------------------------ the thread

    def start(self) -> None:
        """Start evaluating in the background."""
        self._thread.start()

    def wake(self) -> None:
        """Look for new records now."""
        self._wake.set()

    def is_running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Finish the current run, and end the thread."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while not self._stopping:
            try:
                self._claims.refresh()
                self._evaluate_all()
            except Exception as error:  # the evaluator must survive an outage of the database
                log_failure(log, error, "the evaluator could not read pending runs and tries again")
            self._wake.wait(self._interval)
            self._wake.clear()
        self._claims.abandon()

    # ------------------------------------------------------------ runs

    def evaluate_pending(self, runs: Collection[str] | None = None) -> list[str]:
        """Evaluate all steps that are ready, of runs that no other process evaluates, or of some of
        these runs; returns which were evaluated."""
        try:
            return self._evaluate_all(runs)
        finally:
            self._claims.release_all()

    @property
    def failed(self) -> list[str]:
        """The runs whose evaluation failed, and is tried again later."""
        return list(self._quarantined)

    def save_snapshot(self, run: str) -> None:
        """Save the state of a run after its last evaluated step, unless it is being evaluated."""
        status = pending.run_status(self._store, run)
        self._apply_overrides(status)
        if status.rewind or not self._claims.acquire(status.key):
            return
        try:
            save_snapshot(self._store, status, self._state(run, status), self._stamp(status))
        finally:
            self._claims.release_all()

    def _evaluate_all(self, runs: Collection[str] | None = None) -> list[str]:
        now = self._now()
        ready = pending.pending_runs(self._store, now - self._rank_timeout, now)
        due = [(run, key) for run, key in ready.items() if runs is None or run in runs]
        start = random.randrange(len(due)) if due else 0  # processes start with different runs
        evaluated = []
        for run, key in due[start:] + due[:start]:
            if self._stopping or self._is_quarantined(run, now) or not self._claims.acquire(key):
                continue
            evaluated.append(run)
            self._evaluate_or_quarantine(run)
        return evaluated

    def _is_quarantined(self, run: str, now: float) -> bool:
        quarantine = self._quarantined.get(run)
        return quarantine is not None and now < quarantine.until

    def _evaluate_or_quarantine(self, run: str) -> None:
        try:
            while not self._evaluation_pass(run) and not self._stopping:
                pass
            self._quarantined.pop(run, None)
        except UnknownRun:  # it was deleted meanwhile
            self._states.pop(run, None)
            self._quarantined.pop(run, None)
        except DatabaseError as error:
            if not is_outage(error):
                self._quarantine(run)
                return
            # not the fault of the run: it is evaluated as soon as the database is back
            self._states.pop(run, None)
            log.error("run %s waits for the database: %s", run, error.orig)
        except Exception:  # one run that breaks the evaluation must not stop all others
            self._quarantine(run)

    def _quarantine(self, run: str) -> None:
        """Do not try a run again for a while, longer each time."""
        before = self._quarantined.get(run)
        seconds = QUARANTINE if before is None else min(2 * before.seconds, LONGEST_QUARANTINE)
        log.exception("evaluation of run %s failed; retried in %s s", run, seconds)
        self._quarantined[run] = Quarantine(seconds, self._now() + seconds)
        self._states.pop(run, None)

    # ------------------------------------------------------------ one evaluation pass

    def _evaluation_pass(self, run: str) -> bool:
        """Evaluate the next steps of a run, as many as fit in memory; whether those were all."""
        self._yield_to_ingest()
        status = pending.run_status(self._store, run)
        self._apply_overrides(status)
        state = self._state(run, status)
        began = time.perf_counter()
        result = self._evaluate(status, state)
        seconds = time.perf_counter() - began
        save = snapshots.is_due(state) or (result.finished and status.finished)
        try:
            commit(self._store, status, result, state if save else None, self._stamp(status))
        except EvaluationConflict:
            self._states.pop(run, None)
            return False
        state.generation, state.note = status.generation + 1, None
        self._publish(run, result, seconds)
        return result.finished

    def _evaluate(self, status: RunStatus, state: RunState) -> EvaluationUpdate:
        before = dict(state.position.reached)
        state.set_eval_metrics(pending.eval_metrics(self._store, status))
        batch = self._next_batch(status, state)
        evaluated = self._feed(state, batch)
        idle = not evaluated and batch.waiting_since is None
        inactivity = self._detect_inactivity(status, state) if idle else None
        return EvaluationUpdate(
            previous_progress=before,
            evaluated_steps=evaluated,
            evaluation=state.result() if state.has_caught_up() else None,
            progress={o: state.position.reached.get(o, 0) for o in status.progress},
            steps=state.position.steps,
            tokens=state.position.tokens,
            waiting_since=batch.waiting_since,
            finished=not batch.more,
            incomplete_optimizers=batch.incomplete,
            inactivity=inactivity,
            stall_at=self._inactive_at(status, state),
            note=state.note,
        )

    def _next_batch(self, status: RunStatus, state: RunState) -> StepBatch:
        read = partial(pending.next_steps, self._store, status)
        wait = RankWait(
            world_size=status.info.world_size,
            ended=status.ended,
            absent=status.absent,
            timeout=self._rank_timeout,
            absence_timeout=min(ABSENCE_TIMEOUT, self._rank_timeout),
            now=self._now(),
        )
        return next_live_batch(state, status.progress, read, wait)

    def _feed(self, state: RunState, batch: StepBatch) -> list[EvaluatedStep]:
        evaluated = []
        for result in feed(state, batch):
            if result is not None:
                evaluated.append(EvaluatedStep.of(result))
            self._yield_to_ingest()
        return evaluated

    def _publish(self, run: str, result: EvaluationUpdate, seconds: float) -> None:
        failures = [step.failure for step in result.evaluated_steps if step.failure]
        if failures:
            log.error("run %s: %s (%d such steps now)", run, failures[0], len(failures))
        if self._listener and (result.evaluated_steps or result.inactivity):
            reached = {step.optimizer: step.step for step in result.evaluated_steps}
            if result.inactivity:
                reached |= [result.inactivity[0]]
            self._listener(
                EvaluationPass(
                    run=run,
                    reached=reached,
                    evaluation=result.evaluation,
                    steps=len(result.evaluated_steps),
                    seconds=seconds,
                    quarantined=len(failures),
                )
            )

    # ------------------------------------------------------------ inactivity

    def _inactive_at(self, status: RunStatus, state: RunState) -> float | None:
        """When the run is inactive if no step arrives; None if that is not to be detected."""
        optimizer = state.last_optimizer()
        if optimizer is None or status.finished or state.is_inactive(optimizer):
            return None
        timeout = state.inactivity_timeout(optimizer)
        if timeout is None or abs(state.position.delay[optimizer]) > LIVE_DELAY:
            return None
        if state.position.skipping.get(optimizer):
            timeout = max(timeout, SKIPPING_TIMEOUT)
        inactive_at = state.position.received[optimizer] + timeout
        if inactive_at <= self._now():
            with self._store.reading() as connection:
                if attempts.has_later(connection, status.info.run):
                    return None  # its launcher ended this attempt, and started the next
        return inactive_at

    def _detect_inactivity(
        self, status: RunStatus, state: RunState
    ) -> tuple[OptimizerStep, Inactivity] | None:
        """The inactivity to store, if its time has come. The state takes it in at once."""
        optimizer, inactive_at = state.last_optimizer(), self._inactive_at(status, state)
        if optimizer is None or inactive_at is None or inactive_at > self._now():
            return None
        inactivity = self._inactivity(status, state.position.received[optimizer])
        after = optimizer, state.position.reached[optimizer]
        state.stored_inactivity = {**state.stored_inactivity, after: inactivity}
        state.add_stored_inactivity(optimizer)
        return after, inactivity

    def _inactivity(self, status: RunStatus, since: float) -> Inactivity:
        ranks, now = pending.rank_activity(self._store, status), self._now()
        alive = [r for r in ranks.values() if r.heartbeat is not None and r.heartbeat > since]
        return Inactivity(
            seconds=now - since,
            # not by ``last_seen``: another process may have sent the spool of one that is gone
            silent=sorted(
                r for r, s in ranks.items() if now - (s.heartbeat or 0.0) > HEARTBEATS_LOST
            ),
            backwards=max((s.backwards for s in alive if s.backwards is not None), default=None),
        )

    # ------------------------------------------------------------ memory

    def _apply_overrides(self, status: RunStatus) -> None:
        """Read overrides that changed. States in memory come from the old ones and are dropped."""
        if status.rules_revision != self._overrides_revision:
            self._overrides_revision, self._overrides = (
                status.rules_revision,
                self._read_overrides(),
            )
            self._states.clear()

    def _state(self, run: str, status: RunStatus) -> RunState:
        state = self._states.pop(run, None)
        if state is None or state.generation != status.generation or status.rewind:
            state = self._restored(status)
        state.info, state.stored_inactivity = status.info, status.inactivity
        self._states[run] = state
        if len(self._states) > RUNS_IN_MEMORY:
            self._states.popitem(last=False)
        return state

    def _restored(self, status: RunStatus) -> RunState:
        """The state of a run after its last evaluated step; after a rewind, before the step from
        which it is evaluated again."""
        state = evaluation_restore.restore(self._store, status, self._overrides)
        if status.rewind:
            state.catching_up_to = dict(status.progress)
            return state
        state.set_eval_metrics(pending.eval_metrics(self._store, status))
        for _ in evaluation_restore.catch_up(self._store, status, state):
            self._yield_to_ingest()
        return state

    def _stamp(self, status: RunStatus) -> str:
        return stamp(self._overrides, status.info)


def evaluate_all(
    store: Store,
    overrides: RuleOverrides,
    rank_timeout: float = 0,
    runs: Collection[str] | None = None,
) -> None:
    """Evaluate all runs, or only ``runs``, until no step is ready. Raises ``EvaluationFailed``."""
    evaluator = Evaluator(store, rank_timeout, overrides=lambda: overrides)
    while evaluator.evaluate_pending(runs):
        pass
    if evaluator.failed:
        raise EvaluationFailed(
            f"the evaluation of {', '.join(evaluator.failed)} failed, by the error above, "
            "which is one of gradledger: please report it"
        )
