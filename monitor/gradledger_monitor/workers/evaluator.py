"""The judge: takes up runs with news, feeds their steps to the rules in order, writes the answer.

The clock of the service lives here: how long a step waits for its ranks, and when a run stands
still. Rules never see it. What is held in memory is only a cache: the same answer comes of the
stored records alone. Of several processes on one database, each run is judged by one at a time.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.exc import DatabaseError

from gradledger_monitor.common import clock
from gradledger_monitor.evaluation.engine import Engine
from gradledger_monitor.evaluation.evaluator_version import IMPORTED, stamp, version
from gradledger_monitor.evaluation.run_state import EvaluatedStep, OptimizerStep, RunState
from gradledger_monitor.evaluation.snapshot_codec import Position, SnapshotError
from gradledger_monitor.evaluation.step_completeness import ArrivedStep, Patience, Ready, sort_out
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
    save_carried,
    save_snapshot,
)
from gradledger_monitor.store.failures import is_outage
from gradledger_monitor.store.runs import queries

log = logging.getLogger(__name__)

RUNS_IN_MEMORY = 128
QUARANTINE = 60.0  # seconds until a run whose evaluation failed is evaluated again, at first
LONGEST_QUARANTINE = 3_600.0  # each further failure doubles the time, up to this
LIVE = 600.0  # seconds that a step may come late and still tell when its run stands still
RESTING = 300.0  # seconds without a step before ranks that let steps pass are thought to stand
# What is said on the run where its evaluation could not simply go on.
DAMAGED = "the saved evaluation state is damaged"
MISSING = "the saved evaluation state is missing"
OTHER_VERSION = "another version of gradledger evaluated the run before"
ELSEWHERE = "the run was imported"
EVALUATED_AGAIN = "Evaluated again from the stored records: {why}."
CARRIED = (
    "Evaluated by an earlier version up to step {last:,}: the first records are pruned and {why}, "
    "so the findings up to there are kept and cannot be evaluated again."
)
BEATS_LOST = 35.0  # seconds without one of the beats that come every ten


@dataclass(frozen=True)
class Quarantine:
    """A run whose evaluation failed is left alone for a while, so that it holds up no other."""

    seconds: float
    until: float  # Unix seconds


@dataclass(frozen=True)
class EvaluationPass:
    """What one look at a run brought, for whoever listens."""

    run: str
    reached: dict[int, int]  # last step judged, of the optimizers of which steps were
    evaluation: EvaluationResult | None  # None while steps are judged again that were before
    steps: int
    seconds: float  # that the rules took
    quarantined: int = 0  # of the steps


class Evaluator:
    """Judges the runs of one store, in a thread of its own or when asked."""

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
        version()  # now, for an upgrade may replace the files below a running process
        self._yield_to_ingest = yield_to_ingest
        self._overrides = overrides
        self._choices = RuleOverrides()
        self._heeded: int | None = None
        self._store = store
        self._claims = claims_for(store)
        self._rank_timeout = rank_timeout
        self._interval = interval
        self._listener = listener
        self._now = now
        self._folds: OrderedDict[str, RunState] = OrderedDict()
        self._quarantined: dict[str, Quarantine] = {}
        self._news = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="gradledger-judge", daemon=True)

    # ------------------------------------------------------------ the thread

    def start(self) -> None:
        """Begin to judge in the background."""
        self._thread.start()

    def wake(self) -> None:
        """Say that there may be new records."""
        self._news.set()

    def is_running(self) -> bool:
        """Whether the thread is there and looks for records."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Finish the run at hand and end."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while not self._stopping:
            try:
                self._claims.refresh()
                self._judge_all()
            except Exception as error:  # the judge must outlive an outage of the database
                if isinstance(error, DatabaseError) and is_outage(error):
                    log.error("the judge waits for the database: %s", error.orig)
                else:
                    log.exception("the judge could not look for records; it will try again")
            self._news.wait(self._interval)
            self._news.clear()
        self._claims.abandon()

    # ------------------------------------------------------------ one look

    def evaluate_pending(self) -> list[str]:
        """Judge all that can be judged now and no other process judges; the runs taken up."""
        try:
            return self._judge_all()
        finally:
            self._claims.release_all()

    def save_snapshot(self, run: str) -> None:
        """Keep the state of a run as far as it was judged, unless it is being judged."""
        at = pending.run_status(self._store, run)
        self._heed(at)
        if at.rewind or not self._claims.acquire(at.key):
            return
        try:
            save_snapshot(self._store, at, self._fold(run, at), self._stamp(at))
        finally:
            self._claims.release_all()

    def _judge_all(self) -> list[str]:
        now = self._now()
        due = list(pending.pending_runs(self._store, now - self._rank_timeout, now).items())
        at = random.randrange(len(due)) if due else 0  # several processes begin in several places
        taken = []
        for run, key in due[at:] + due[:at]:
            if self._stopping or self._is_quarantined(run, now) or not self._claims.acquire(key):
                continue
            taken.append(run)
            self._judge_or_quarantine(run)
        return taken

    def _is_quarantined(self, run: str, now: float) -> bool:
        quarantine = self._quarantined.get(run)
        return quarantine is not None and now < quarantine.until

    def _judge_or_quarantine(self, run: str) -> None:
        try:
            while not self._look(run) and not self._stopping:
                pass
            self._quarantined.pop(run, None)
        except DatabaseError as error:
            if not is_outage(error):
                self._quarantine(run)
                return
            # no fault of the run: it is taken up again as soon as the database is back
            self._folds.pop(run, None)
            log.error("run %s waits for the database: %s", run, error.orig)
        except Exception:  # one run that breaks a rule or the engine must not stop all others
            self._quarantine(run)

    def _quarantine(self, run: str) -> None:
        """Leave a run alone for a while, longer each time."""
        before = self._quarantined.get(run)
        seconds = QUARANTINE if before is None else min(2 * before.seconds, LONGEST_QUARANTINE)
        log.exception("evaluation of run %s failed; retried in %s s", run, seconds)
        self._quarantined[run] = Quarantine(seconds, self._now() + seconds)
        self._folds.pop(run, None)

    def _look(self, run: str) -> bool:
        """Judge the next steps of a run, as many as fit in memory; whether that was all."""
        self._yield_to_ingest()
        at = pending.run_status(self._store, run)
        self._heed(at)
        fold = self._fold(run, at)
        began = time.perf_counter()
        result = self._judge(at, fold)
        seconds = time.perf_counter() - began
        due = snapshots.is_due(fold) or (result.finished and at.finished)
        try:
            commit(self._store, at, result, fold if due else None, self._stamp(at))
        except EvaluationConflict:
            self._folds.pop(run, None)
            return False
        fold.generation, fold.note = at.generation + 1, None
        self._tell(run, result, seconds)
        return result.finished

    def _judge(self, at: RunStatus, fold: RunState) -> EvaluationUpdate:
        before = dict(fold.at.reached)
        fold.engine.evaluated(pending.eval_metrics(self._store, at))
        found = {o: self._ready(at, fold, o) for o in at.progress}
        ready = [one for one, _ in found.values()]
        steps = sorted((s for one in ready for s in one.steps), key=lambda s: (s.step, s.optimizer))
        judged = [one for step in steps if (one := self._see(at, fold, step)) is not None]
        for optimizer in at.progress:
            fold.hear_silence(optimizer)
        waits = [one.waiting_since for one in ready if one.waiting_since is not None]
        silence = None if judged or waits else self._silence(at, fold)
        return EvaluationUpdate(
            previous_progress=before,
            evaluated_steps=judged,
            evaluation=fold.engine.evaluation() if fold.caught_up() else None,
            progress={o: fold.at.reached.get(o, 0) for o in at.progress},
            steps=fold.at.steps,
            tokens=fold.at.tokens,
            waiting_since=min(waits, default=None),
            finished=not any(more for _, more in found.values()),
            incomplete_optimizers={o for o, (one, _) in found.items() if one.unsure},
            inactivity=silence,
            stall_at=self._stall_at(at, fold),
            note=fold.note,
        )

    def _see(self, at: RunStatus, fold: RunState, step: ArrivedStep) -> EvaluatedStep | None:
        self._yield_to_ingest()
        seen = fold.see(at.info, step)
        return None if seen is None else EvaluatedStep.of(seen)

    def _ready(self, at: RunStatus, fold: RunState, optimizer: int) -> tuple[Ready, bool]:
        after = fold.at.reached.get(optimizer, 0)
        arrived, more = pending.next_steps(self._store, at, optimizer, after)
        now = self._now()
        if arrived:  # a clock set back must not make the first of them wait for longer
            first = arrived[0]
            arrived[0] = fold.waited_for(first, min(first.received, now))
        resting = fold.at.resting.get(optimizer, {})
        patience = Patience(at.info.world_size, at.ended, now - self._rank_timeout, resting)
        ready = sort_out(arrived, after, patience)
        return ready, more and ready.waiting_since is None

    def _tell(self, run: str, result: EvaluationUpdate, seconds: float) -> None:
        failures = [one.failure for one in result.evaluated_steps if one.failure]
        if failures:
            log.error("run %s: %s (%d such steps now)", run, failures[0], len(failures))
        if self._listener and (result.evaluated_steps or result.inactivity):
            reached = {one.optimizer: one.step for one in result.evaluated_steps}
            if result.inactivity:
                reached |= [result.inactivity[0]]
            steps, failed = len(result.evaluated_steps), len(failures)
            self._listener(EvaluationPass(run, reached, result.evaluation, steps, seconds, failed))

    # ------------------------------------------------------------ runs that stand still

    def _stall_at(self, at: RunStatus, fold: RunState) -> float | None:
        """When the run stands still, if no step comes; None when that will not be said."""
        optimizer = fold.last_heard()
        if optimizer is None or at.finished or fold.was_silent(optimizer):
            return None
        patience = fold.engine.inactivity_timeout(optimizer)
        if patience is None or abs(fold.at.late[optimizer]) > LIVE:
            return None
        if fold.at.resting.get(optimizer):
            patience = max(patience, RESTING)
        return fold.at.heard[optimizer] + patience

    def _silence(self, at: RunStatus, fold: RunState) -> tuple[OptimizerStep, Inactivity] | None:
        """What is written down when that moment has come; it is taken in at once."""
        optimizer, since = fold.last_heard(), self._stall_at(at, fold)
        if optimizer is None or since is None or since > self._now():
            return None
        signs = pending.rank_activity(self._store, at)
        heard = fold.at.heard[optimizer]
        beats = [
            s.backwards for s in signs.values() if s.heartbeat is not None and s.heartbeat > heard
        ]
        silence = Inactivity(
            seconds=self._now() - heard,
            silent=sorted(r for r, s in signs.items() if self._now() - s.last_seen > BEATS_LOST),
            backwards=max((b for b in beats if b is not None), default=None),
        )
        place = optimizer, fold.at.reached[optimizer]
        fold.silences = {**fold.silences, place: silence}
        fold.hear_silence(optimizer)
        return place, silence

    # ------------------------------------------------------------ memory

    def _heed(self, at: RunStatus) -> None:
        """Judge by what is chosen now; what is remembered was judged by what was chosen before."""
        if at.rules_revision != self._heeded:
            self._heeded, self._choices = at.rules_revision, self._overrides()
            self._folds.clear()

    def _fold(self, run: str, at: RunStatus) -> RunState:
        fold = self._folds.pop(run, None)
        if fold is None or fold.generation != at.generation or at.rewind:
            fold = self._taken_up(at)
        fold.silences = at.inactivity
        self._folds[run] = fold
        if len(self._folds) > RUNS_IN_MEMORY:
            self._folds.popitem(last=False)
        return fold

    def _taken_up(self, at: RunStatus) -> RunState:
        """A run as far as it was judged: from what was kept of it, and the steps since."""
        fold = self._restored(at)
        fold.silences = at.inactivity
        if at.rewind:
            fold.catching_up_to = dict(at.progress)
            return fold
        fold.engine.evaluated(pending.eval_metrics(self._store, at))
        for optimizer, last in at.progress.items():
            self._replay(fold, at, optimizer, last)
        return fold

    def _restored(self, at: RunStatus) -> RunState:
        """From the last snapshot that can be used; else from the first record or, where that is
        pruned, from the judgement that is stored."""
        damaged = False
        for snapshot in snapshots.usable_states(self._store, at.key, self._stamp(at)):
            fold = self._new_fold(at)
            try:
                fold.restore(snapshot)
            except SnapshotError as error:
                log.warning("run %s: %s", at.info.run, error)
                damaged = True
            else:
                fold.note = EVALUATED_AGAIN.format(why=DAMAGED) if damaged else None
                return fold
        fold, why = self._new_fold(at), DAMAGED if damaged else self._why_none(at)
        if at.pruned:
            self._carry(at, fold, why or MISSING)
        elif why:
            fold.note = EVALUATED_AGAIN.format(why=why)
        return fold

    def _new_fold(self, at: RunStatus) -> RunState:
        return RunState(Engine(at.info, choices=self._choices), at.generation)

    def _why_none(self, at: RunStatus) -> str | None:
        """Why there is no snapshot of an evaluated run; None where there need not be one."""
        if at.steps and at.evaluator != version():
            return ELSEWHERE if at.evaluator == IMPORTED else OTHER_VERSION
        due = at.steps >= snapshots.EVERY_STEPS and not at.rewind
        return MISSING if due and not snapshots.any_exist(self._store, at.key) else None

    def _carry(self, at: RunStatus, fold: RunState, why: str) -> None:
        """Keep the stored findings, and save them as the base at once: all later steps can be
        evaluated again from there."""
        quiet = {o: after for o, after in at.inactivity if at.progress.get(o) == after}
        position = Position(
            reached=dict(at.progress), silent_after=quiet, steps=at.steps, tokens=at.tokens
        )
        fold.carry(queries.evaluation(self._store, at.info.run), position)
        last = max(at.progress.values(), default=0)
        note = CARRIED.format(last=last, why=why)
        log.warning("run %s: %s", at.info.run, note)
        save_carried(self._store, at, fold, self._stamp(at), note)

    def _stamp(self, at: RunStatus) -> str:
        return stamp(self._choices, at.info)

    def _replay(self, fold: RunState, at: RunStatus, optimizer: int, last: int) -> None:
        more = last > fold.at.reached.get(optimizer, 0)
        while more:
            after = fold.at.reached.get(optimizer, 0)
            arrived, more = pending.next_steps(self._store, at, optimizer, after, last)
            for step in arrived:
                self._see(at, fold, step)


def evaluate_pending(
    store: Store,
    rank_timeout: float = 30.0,
    overrides: RuleOverrides = RuleOverrides(),  # noqa: B008 (frozen)
) -> list[str]:
    """Judge all that can be judged now, in this thread; ``rank_timeout=0`` waits for no rank."""
    return Evaluator(store, rank_timeout, overrides=lambda: overrides).evaluate_pending()
