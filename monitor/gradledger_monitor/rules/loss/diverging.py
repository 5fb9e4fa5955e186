"""loss.diverging"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.circumstances import Onset
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.loss.common import OPPOSED, may_be_opposed
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured
from gradledger_monitor.rules.state import declare

LEAST = 1.0  # a loss below it has not diverged, however small it was at the start
UNLEARNT = 0.5  # of the decrease from the start to the best: above it, the loss has risen back
REGAINED = 0.2  # of that decrease: below it, what had been learnt is regained after a divergence
Z = 3.5  # modified z-score above which a loss is out of the range of the best steps
RISEN = 3.0  # times the largest loss of the start, from which the rise is dated
# If the number of classes is not known, one that is above both is not that of an untrained model:
JUMP = 10.0  # times the first one, and
UNTRAINED = 20.0  # more than that of a guess among 400 million classes
HARDER = (
    " The model has unlearnt, or what it is trained on is harder than before: more classes, longer "
    "masks, mixed or noisy examples."
)
LEARNT = 0.3  # of the start: a smaller decrease is not judged
# Times the classes of the start from which it begins again. The cross entropy of a model that
# guesses among C classes is ln C: with fewer it rises by less than ln 1.5 = 0.4, and an error is a
# rise by 2 or more. A number that rises every few steps must not hide a slow divergence.
GROWN = 1.5
CROSS_ENTROPIES = ("NllLossBackward0", "NllLoss2DBackward0")

FIX = """\
for group in optimizer.param_groups:
    group["lr"] /= 10                # before the first step: schedules start from it
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"""


class _Level(NamedTuple):
    """What a model had learnt: its lowest median, and that of the start."""

    best: float
    start: float
    deviation: float = 0.0  # median absolute deviation of the lowest

    @property
    def decrease(self) -> float:
        return self.start - self.best

    @property
    def range(self) -> float:
        """How far above the lowest median a loss is still in its range."""
        return Z / 0.6745 * self.deviation

    @property
    def regained(self) -> float:
        """The loss from which on the model has learnt again what it had."""
        return self.best + max(REGAINED * self.decrease, self.range)


class _Far(NamedTuple):
    """Losses that are compared with a multiple of the largest of the start."""

    what: str
    last: Sequence[float]
    highest: float
    times: float

    @property
    def limit(self) -> float:
        return self.times * max(LEAST, self.highest)


class Diverging(Rule):
    """The training loss diverges.

    **What it sees**

    One of these, from 10 steps on:

    - Each of the last 5 losses is above 1,000 times the largest loss of the first 5 steps (of
      1, if that is smaller), and they do not fall.
    - Each of the last 20 cross entropies per token is above 3 times the largest of the first 5
      steps, and they do not fall. An untrained model that guesses has the logarithm of the
      number of classes; three times that is a model that is sure of wrong answers.
    - For 100 steps and a fifth of the run, the median cross entropy per token of 20 steps has
      been above the middle between the start and the best such median, does not fall, and is
      out of the range of the best steps: a modified z-score above 3.5, which is the median
      over the median absolute deviation, times 0.6745 (B. Iglewicz and D. Hoaglin, How to
      detect and handle outliers, 1993). It is an error if the rise began with a loss above 3
      times the largest of the first 5 steps (of 1, if that is smaller), and at least four
      fifths of the decrease are lost. Otherwise it is information: examples that become harder
      raise the loss, too, and new classes do so at once.

    A cross entropy above 3 times the first one and above 3 times the logarithm of the number of
    classes is not counted as part of the start; if that number is not known, one above 20 and above
    10 times the first one. Where there are 1.5 times as many classes as at the start, or more, the
    start begins again there: a model that guesses has a larger loss. It does not while a divergence
    remains, or if each of the last 5 losses is above 3 times the largest of the start (of 1, if
    that is smaller) and they do not fall.

    The first two remain until what the model had learnt is regained: the median of 20 steps is in
    the range of the best steps, or above the best median before by at most a fifth of the decrease
    from the start to that median. If it had learnt nothing, the median must be below 3 times that
    of the first 5 losses (of 1, if that is smaller); of cross entropies, below the largest of the
    start. Single low losses are no recovery, nor is a model that guesses where it had learnt.

    **Why it matters**

    The parameters have left the region in which the model had learnt, or could learn. More
    steps do not bring them back.

    **What to do**

    Restore a checkpoint from before the rise. Lower the learning rate, lengthen the warm-up,
    clip by norm, and look at what changed at the step where the rise began: the finding names
    it.

    **When it is silent**

    The loss has been negative (a policy gradient, a critic, a log-likelihood): how large it is
    states nothing. Several optimizers train on different losses (a GAN). The loss falls again.
    Losses other than a cross entropy may move with their targets or coefficients, as values in
    reinforcement learning or a divergence that is annealed do: of those, only the first kind is
    reported. The same of a cross entropy over the examples of a batch (a contrastive loss), once
    the size of the batch has changed: the loss of a model that guesses changes with it.

    **Incidents**

    textbook (a learning rate that is too large)
    """

    start = Parameter(5, "first losses; the largest of them is the loss at the start")
    needed = Parameter(10, "steps of history")
    times = Parameter(1000.0, "times the loss at the start that is reported")
    stays = Parameter(5, "steps for which the loss must stay there")
    entropy_times = Parameter(3.0, "times the cross entropy at the start that is reported")
    entropy_stays = Parameter(20, "steps for which it must stay there")
    span = Parameter(20, "steps of which the best median is taken")
    unlearnt = Parameter(100, "steps for which a cross entropy must have risen back")
    share = Parameter(0.2, "share of the run for which it must have, too", most=1.0)

    kind = "T"
    works_on_metric_logs = True
    inhibits = ("norm.spike",)
    # norms that exploded before the loss left its range show how it diverged, and where it began
    inhibits_later = ("norm.exploding", "loss.nonfinite", "norm.nonfinite")

    state = declare(
        _negative=bool,
        _sizes=list[int],
        _classes=int,
        _least=int,
        _since=int,
        _count=int,
        _first=list[float],
        _recent=deque[float],
        _before=float,
        _entropies=int,
        _start=list[float],
        _last=deque[float],
        _best=float,
        _deviation=float,
        _above=int,
        _levels=list[float],
        _is_up=bool,
        _diverged=bool,
        _is_far=bool,
        _onset=Onset,
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._negative = False  # some loss was below 0
        self._sizes: list[int] = []  # of batches whose examples are the classes; two at most
        self._classes = 0  # the most that a cross entropy has had
        self._least = 0  # how many it had at the start of the losses that are compared
        self._since = 0  # the step of that start, if losses before it are not compared
        self._begin()

    def _begin(self) -> None:
        """Compare the losses with those from here on."""
        self._count = 0  # losses
        self._first: list[float] = []  # losses at the start
        self._recent: deque[float] = deque(maxlen=max(self.unlearnt, self.stays, self.span))
        self._before = math.inf  # lowest median of ``span`` among the recent ones before the rise
        # of cross entropies per token
        self._entropies = 0
        self._start: list[float] = []
        self._last: deque[float] = deque(maxlen=max(self.unlearnt, self.entropy_stays, self.span))
        self._best = math.inf  # lowest median of ``span``
        self._deviation = 0.0  # median absolute deviation of those
        self._above = 0  # steps in a row whose medians are above the middle
        # medians of ``unlearnt`` steps when that number was 1, 2, 4 ... times as large; two at most
        self._levels: list[float] = []
        self._is_up = False  # the loss has left the range of its start
        self._onset = Onset()  # where the rise began
        self._is_far = False  # that it was far above its start is reported
        self._diverged = False  # it is reported, and the loss has not come back since

    def evaluate(self, window: Window) -> Outcome:
        """The loss against that of the start, and a cross entropy against its best, too."""
        facts = window.facts
        loss = facts.loss_reported
        self._note_classes(facts)
        unmet = self._unmet(facts, loss)
        if unmet is not None or loss is None:
            return unmet or OK
        self._note_onset(window, loss)
        self._count += 1
        if self._count <= self.start:
            self._first.append(loss)
        self._recent.append(loss)
        entropy = None if self._has_other_classes(facts) else _entropy_per_token(facts)
        if entropy is not None:
            self._add_entropy(entropy)
        if self._count < self.needed:
            return not_measured(f"needs {counted(self.needed, 'step')}")
        if self._count < self.start + self.stays:
            return OK
        far = self._of_loss(entropy is not None) or (
            None if entropy is None else self._far_above_start()
        )
        risen = None if far or entropy is None else self._risen_back()
        self._is_far, self._diverged = far is not None, (far or risen) is not None
        return far or risen or OK

    def _unmet(self, facts: StepFacts, loss: float | None) -> Outcome | None:
        """Why the size of this loss states nothing, or None."""
        if facts.record.skipped or loss is None or not math.isfinite(loss):
            return not_measured("no finite loss")
        self._negative = self._negative or loss < 0
        if self._negative:
            return not_applicable("the loss has been negative: its size states nothing")
        return OPPOSED if may_be_opposed(facts) else None

    def _note_classes(self, facts: StepFacts) -> None:
        """Begin again with more classes: a model that guesses has a larger loss than before.

        What has diverged is compared with what the model had learnt, with more classes, too.
        """
        classes = max((term.loss_term.classes or 0 for term in facts.terms), default=0)
        if classes <= self._classes:
            return
        self._classes = classes
        if not self._least:
            self._least = classes
        elif classes >= GROWN * self._least and not self._is_lost():
            self._least, self._since = classes, facts.step
            self._begin()

    def _is_lost(self) -> bool:
        """Whether it has diverged, or its last losses, not one alone, are out of range."""
        if self._is_far or (self._diverged and self._onset.step > 0):
            return True
        last = list(self._recent)[-self.stays :]
        return self._is_up and self._is_above_start(min(last)) and not _falls(last)

    def _is_above_start(self, loss: float) -> bool:
        return self._count >= self.start and loss > RISEN * max(LEAST, *self._first)

    def _note_onset(self, window: Window, loss: float) -> None:
        """Remember what changed when the loss left the range of its start."""
        is_up = self._is_above_start(loss)
        if is_up and not (self._is_up or self._diverged):
            self._onset.note(window)
            self._before = self._lowest_median()
        self._is_up = is_up

    def _has_other_classes(self, facts: StepFacts) -> bool:
        """Whether the examples of a batch are the classes, and their number was another one."""
        of_each = any(m.consecutive_target for _, m in facts.applied)
        terms = [t.loss_term for t in facts.terms]
        sizes = {term.size or 0 for term in terms if of_each or term.compares}
        self._sizes = sorted({*self._sizes, *sizes})[:2]
        return len(self._sizes) > 1

    # ------------------------------------------------------------ any loss

    def _of_loss(self, is_entropy: bool) -> Outcome | None:
        """Each of the last losses far above the start, and not falling.

        A cross entropy has its limits, which show whether it is back.
        """
        highest, start = max(self._first), median(self._first)
        last = list(self._recent)
        before = _Level(min(start, self._before), start)
        back = self.times * max(LEAST, highest) if is_entropy else RISEN * max(LEAST, start)
        if not is_entropy and before.decrease >= LEARNT * start:
            back = before.regained
        far = _Far("loss", last[-self.stays :], highest, self.times)
        return self._far_above(far, last[-self.span :], back, before.best)

    def _lowest_median(self) -> float:
        """The lowest median of as many losses in a row as a best median takes."""
        losses = list(self._recent)
        ends = range(len(losses), self.span - 1, -self.span)
        return min((median(losses[end - self.span : end]) for end in ends), default=math.inf)

    def _far_above(
        self, far: _Far, latest: Sequence[float], back: float, best: float
    ) -> Outcome | None:
        """Each of the last losses above a multiple of the highest of the start, and not falling.

        Once that is reported, it remains until the median of the latest has come down to ``back``.
        """
        loss, limit = median(latest), far.limit
        if min(far.last) > limit and not (_falls(far.last) and not self._diverged):
            loss, title = far.last[-1], "The training loss diverges"
            stated = (
                f"The {far.what} is {significant(loss)}, and has been above {significant(limit)} "
                f"for at least {counted(len(far.last), 'step')}."
            )
        elif self._is_far and loss > back:
            above = f", above {significant(limit)}" if loss > limit else ""
            title = "The training loss diverges" if above else "The training loss diverged"
            stated = (
                f"The {far.what} has a median of {significant(loss)} over the last "
                f"{counted(len(latest), 'step')}{above}."
            )
        else:
            return None
        lowest, evidence = "", dict[str, float]()
        if back < far.highest:
            lowest = f", and the lowest median was {significant(best)}"
            evidence["loss_best"] = best
        return finding(
            "error",
            title,
            f"{stated} At the start it was at most {significant(far.highest)}{lowest}."
            f"{self._not_compared()}{self._cause()}",
            FIX,
            loss=loss,
            loss_start=far.highest,
            since=self._onset.step or None,
            **evidence,
            **self._onset.evidence,
        )

    def _not_compared(self) -> str:
        if not self._since:
            return ""
        return (
            f" Losses before step {self._since:,} are not compared: it is the first measured step "
            f"with {self._least:,} classes."
        )

    def _cause(self) -> str:
        onset = self._onset
        if not onset.step:
            return ""
        return f" It left the range of the start at step {onset.step:,}.{onset.text}"

    # ------------------------------------------------------------ cross entropies

    def _add_entropy(self, entropy: float) -> None:
        self._entropies += 1
        if self._entropies == 1 or (self._entropies <= self.start and self._may_guess(entropy)):
            self._start.append(entropy)
        self._last.append(entropy)
        if self._entropies % self.span == 0:
            self._end_span(list(self._last)[-self.span :])

    def _may_guess(self, entropy: float) -> bool:
        """Whether an untrained model may have such a cross entropy, as the first one had."""
        if self._classes > 1:
            return entropy <= RISEN * max(math.log(self._classes), self._start[0])
        return entropy <= max(UNTRAINED, JUMP * self._start[0])

    def _end_span(self, latest: list[float]) -> None:
        now = median(latest)
        self._above = self._above + self.span if now > self._middle() else 0
        self._note_level()
        if not (self._above or self._is_up or self._diverged):
            self._onset = Onset()  # it has come back, and a later rise begins elsewhere
        if now < self._best:
            self._best = now
            self._deviation = median(abs(each - now) for each in latest)

    def _note_level(self) -> None:
        times, rest = divmod(self._above, self.unlearnt)
        if not self._above:
            self._levels = []
        elif rest < self.span and times.bit_count() == 1:
            self._levels = [*self._levels[-1:], median(list(self._last)[-self.unlearnt :])]

    def _is_regaining(self, now: float) -> bool:
        """Whether a fifth of what was lost is regained since half of these steps or less.

        That is at most what had been learnt: a loss that falls and is still above its start is no
        recovery.
        """
        before = min(self._levels[0], median(self._start)) if self._levels else now
        return now - self._best < (1 - REGAINED) * (before - self._best)

    def _middle(self) -> float:
        if math.isinf(self._best):
            return self._best  # no best yet
        return self._best + UNLEARNT * (median(self._start) - self._best)

    def _far_above_start(self) -> Outcome | None:
        last = list(self._last)[-self.entropy_stays :]
        if len(last) < self.entropy_stays:
            return None
        back = highest = max(self._start)
        best = _Level(min(highest, self._best), median(self._start), self._deviation)
        if best.decrease > best.range:
            back = min(highest, best.regained)
        far = _Far("mean cross entropy", last, highest, self.entropy_times)
        return self._far_above(far, list(self._last)[-self.span :], back, best.best)

    def _has_learnt(self) -> bool:
        start = median(self._start)
        return start - self._best >= LEARNT * start

    def _risen_back(self) -> Outcome | None:
        if self._above < max(self.unlearnt, self.share * self._entropies):
            return None
        last, start = list(self._last)[-self.unlearnt :], median(self._start)
        now = median(last)
        has_risen = now - self._best > (Z / 0.6745) * (self._deviation or LEAST * 1e-3)
        has_risen = has_risen and not _falls(last)
        if not self._has_learnt() or not (has_risen or self._diverged) or self._is_regaining(now):
            return None
        is_lost = now - self._best >= (1 - REGAINED) * (start - self._best)
        unlearnt = self._onset.step > 0 and is_lost
        return finding(
            "error" if unlearnt else "info",
            "The model has unlearnt" if unlearnt else "The cross entropy has risen back",
            f"The mean cross entropy fell from {significant(start)} to "
            f"{significant(self._best)}, rose back, and has stayed above "
            f"{significant(self._middle())} for {counted(self._above, 'step')}. Its median over "
            f"the last {counted(len(last), 'step')} is {significant(now)}."
            f"{self._not_compared()}{self._cause()}{'' if unlearnt else HARDER}",
            FIX,
            loss=now,
            loss_start=start,
            loss_best=self._best,
            steps_up=self._above,
        )


def _falls(losses: Sequence[float]) -> bool:
    """Whether the second half is lower than the first, in the median."""
    half = len(losses) // 2
    if not half:  # a threshold of one step
        return False
    return median(losses[-half:]) < 0.98 * median(losses[:half])


def _entropy_per_token(facts: StepFacts) -> float | None:
    """The mean cross entropy per token, if the loss is nothing else; no coefficient moves it."""
    terms = facts.terms
    if not terms or any(t.loss_term.kind not in CROSS_ENTROPIES or not t.positive for t in terms):
        return None
    return facts.loss_token
