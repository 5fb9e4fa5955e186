"""The judge: takes up runs with news, feeds their steps to the rules in order, writes the answer.

The clock of the service lives here: how long a step waits for its ranks. Rules never see it.
What is held in memory is only a cache: the same answer comes of the stored records alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from gradledger_monitor import facts
from gradledger_monitor.engine import Engine
from gradledger_monitor.findings import Judgement
from gradledger_monitor.rules.choices import Choices
from gradledger_monitor.store import judging
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.judging import Judged, Outrun, Result, Standing
from gradledger_monitor.waiting import Arrived, Patience, Ready, sort_out

log = logging.getLogger(__name__)

RUNS_IN_MEMORY = 128
STEP_ASIDE = 60.0  # seconds that a run which cannot be judged is left alone

Listener = Callable[[str, dict[int, int], Judgement], None]  # run, steps reached, judgement
Timer = Callable[[int, float], None]  # steps, seconds that the rules took on them


@dataclass
class Fold:
    """A run judged so far: the state of its rules, and where it stands."""

    engine: Engine
    generation: int
    reached: dict[int, int] = field(default_factory=dict)
    steps: int = 0
    tokens: int = 0
    catching_up_to: dict[int, int] = field(default_factory=dict)

    def see(self, info: facts.RunInfo, step: Arrived) -> Judged:
        """Feed one step to the rules."""
        merged = facts.merge(info, step.optimizer, step.step, step.records)
        self.engine.see(merged)
        figures = merged.figures()
        self.reached[step.optimizer] = step.step
        self.steps += 1
        self.tokens += int(figures["tokens"] or 0)
        return Judged(step.optimizer, step.step, merged.time, len(step.records), figures)

    def caught_up(self) -> bool:
        """Whether everything that was once judged has been judged again after a rewind."""
        return all(self.reached.get(o, 0) >= step for o, step in self.catching_up_to.items())


class Judge:
    """Judges the runs of one store, in a thread of its own or when asked."""

    def __init__(
        self,
        store: Store,
        patience: float = 30.0,
        interval: float = 1.0,
        listener: Listener | None = None,
        now: Callable[[], float] = time.time,
        choices: Choices = Choices(),  # noqa: B008 (frozen)
        timer: Timer | None = None,
    ) -> None:
        self._choices = choices
        self._timer = timer
        self._store = store
        self._patience = patience
        self._interval = interval
        self._listener = listener
        self._now = now
        self._folds: OrderedDict[str, Fold] = OrderedDict()
        self._aside: dict[str, float] = {}
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

    def works(self) -> bool:
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
                self.judge_pending()
            except Exception:  # the database may be away for a while; the judge must outlive that
                log.exception("the judge could not look for records; it will try again")
            self._news.wait(self._interval)
            self._news.clear()

    # ------------------------------------------------------------ one look

    def judge_pending(self) -> list[str]:
        """Judge all that can be judged now; the runs that were taken up."""
        names = judging.pending(self._store, self._now() - self._patience)
        taken = [run for run in names if self._aside.get(run, 0.0) <= self._now()]
        for run in taken:
            if not self._stopping:
                self._judge_or_step_aside(run)
        return taken

    def _judge_or_step_aside(self, run: str) -> None:
        try:
            while not self._look(run) and not self._stopping:
                pass
            self._aside.pop(run, None)
        except Exception:  # one run that breaks a rule or the engine must not stop all others
            log.exception("run %s could not be judged; left alone for %s s", run, STEP_ASIDE)
            self._aside[run] = self._now() + STEP_ASIDE
            self._folds.pop(run, None)

    def _look(self, run: str) -> bool:
        """Judge the next steps of a run, as many as fit in memory; whether that was all."""
        at = judging.standing(self._store, run)
        fold = self._fold(run, at)
        result = self._judge(at, fold)
        try:
            judging.commit(self._store, at, result)
        except Outrun:
            self._folds.pop(run, None)
            return False
        fold.generation = at.generation + 1
        self._tell(run, result)
        return result.finished

    def _judge(self, at: Standing, fold: Fold) -> Result:
        found = {o: self._ready(at, o, fold.reached.get(o, 0)) for o in at.progress}
        ready = [one for one, _ in found.values()]
        steps = sorted((s for one in ready for s in one.steps), key=lambda s: (s.step, s.optimizer))
        began = time.perf_counter()
        judged = [fold.see(at.info, step) for step in steps]
        if self._timer:
            self._timer(len(judged), time.perf_counter() - began)
        fold.engine.evaluated(judging.evaluations(self._store, at))
        waits = [one.waiting_since for one in ready if one.waiting_since is not None]
        return Result(
            judged=judged,
            judgement=fold.engine.judgement() if fold.caught_up() else None,
            progress={o: fold.reached.get(o, 0) for o in at.progress},
            steps=fold.steps,
            tokens=fold.tokens,
            waiting_since=min(waits, default=None),
            finished=not any(more for _, more in found.values()),
            unsure={o for o, (one, _) in found.items() if one.unsure},
        )

    def _ready(self, at: Standing, optimizer: int, after: int) -> tuple[Ready, bool]:
        arrived, more = judging.next_steps(self._store, at, optimizer, after)
        patience = Patience(at.info.world_size, at.ended, self._now() - self._patience)
        ready = sort_out(arrived, after, patience)
        return ready, more and ready.waiting_since is None

    def _tell(self, run: str, result: Result) -> None:
        if self._listener and result.judged and result.judgement:
            reached = {one.optimizer: one.step for one in result.judged}
            self._listener(run, reached, result.judgement)

    # ------------------------------------------------------------ memory

    def _fold(self, run: str, at: Standing) -> Fold:
        fold = self._folds.pop(run, None)
        if fold is None or fold.generation != at.generation or at.rewind:
            fold = self._replayed(at)
        self._folds[run] = fold
        if len(self._folds) > RUNS_IN_MEMORY:
            self._folds.popitem(last=False)
        return fold

    def _replayed(self, at: Standing) -> Fold:
        fold = Fold(Engine(at.info, choices=self._choices), at.generation)
        if at.rewind:
            fold.catching_up_to = dict(at.progress)
            return fold
        for optimizer, last in at.progress.items():
            self._replay(fold, at, optimizer, last)
        return fold

    def _replay(self, fold: Fold, at: Standing, optimizer: int, last: int) -> None:
        more = last > 0
        while more:
            after = fold.reached.get(optimizer, 0)
            arrived, more = judging.next_steps(self._store, at, optimizer, after, last)
            for step in arrived:
                fold.see(at.info, step)


def judge_pending(
    store: Store,
    patience: float = 30.0,
    choices: Choices = Choices(),  # noqa: B008 (frozen)
) -> list[str]:
    """Judge all that can be judged now, in this thread; ``patience=0`` waits for no rank."""
    return Judge(store, patience, choices=choices).judge_pending()
