"""loss.maximised"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median

from gradledger_monitor.ingest.schema import Term
from gradledger_monitor.model.findings import Outcome, Severity
from gradledger_monitor.model.losses.term_weights import has_own_weights
from gradledger_monitor.model.readings import WeightedTerm
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.definition import DEFAULTS, UNSTABLE, Parameter
from gradledger_monitor.rules.loss.common import OPPOSED, may_be_opposed
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import (
    OK,
    Rule,
    Window,
    finding,
    not_applicable,
    not_measured,
    ok,
)
from gradledger_monitor.rules.state import declare

CROSS_ENTROPY, BINARY = "NllLoss", "BinaryCrossEntropy"  # kinds begin with these
DISTANCES = ("MseLoss", "SmoothL1Loss", "HuberLoss", "L1Loss")
UNTRAINED = 0.5  # of the loss of a model that guesses: below it, the model had learnt something
LAYERS = 2  # of a model; an attack on an input trains one tensor
SPAN = 5  # losses at the start, and the last ones

NO_CRITERION = not_applicable("no loss of one known criterion alone")
NO_LOSS = not_measured("the value of the loss was not read")
MINIMISED = ok("the loss is minimised")

FIX = """\
loss = torch.nn.functional.cross_entropy(logits, labels)   # without a minus in front of it
loss.backward()
optimizer.step()                    # and an optimizer without maximize=True"""


class Maximised(Rule):
    """A loss is maximised: there is a minus in front of it, or the optimizer has ``maximize=True``.

    **What it sees**

    The sign of the weight that each element of the loss has in the gradient, and whether the
    optimizer has ``maximize=True``. Each step so far follows the gradient of a cross entropy (of
    classes, binary) or of a distance (squared, absolute, Huber, smooth L1) upwards, nothing else
    is trained, and from 10 steps on the median of the last 5 losses is above that of the first 5.

    - It is an error if the model began as one that guesses, or nearly so: the cross entropy of the
      first steps was above half of ln C for C classes, and the last ones are above 1.5 times that
      loss and 1.5 ln C. The model is then sure of wrong answers.
    - It is a warning if a distance has grown to 10 times that of the start, and the optimizer
      trains several layers.
    - Otherwise it is information.

    **Why it matters**

    The optimizer goes away from what the loss measures. No learning rate and no number of steps
    helps.

    **What to do**

    Remove the minus, or ``maximize=True``. A minus belongs in front of what should become larger:
    a log-likelihood, a similarity, a reward; not in front of ``cross_entropy``, ``nll_loss`` or
    ``mse_loss``, which are negative log-likelihoods or distances already.

    **When it is silent**

    - Both signs are reversed, ``maximize=True`` and a minus.
    - Another loss is trained beside it, in the same backward or another step: unlearning with a
      loss on what should remain, an entropy bonus, a penalty.
    - Other optimizers train on other losses: the generator and the discriminator of a GAN.
    - A gradient that is reversed below the loss, or by the loop after backward.
    - Each element has its weight, as an advantage; likelihoods and rewards written by hand.
    - Updates by hand, whose direction is not known; a loss that does not rise.

    Unlearning by gradient ascent alone, and an attack on the inputs of a trained model, begin with
    a small loss: they are information.

    **Incidents**

    textbook (``loss = -cross_entropy(...)``)
    """

    needed = Parameter(10, "steps of history")
    times = Parameter(1.5, "times the loss of a model that guesses, and that of the start")
    distance_times = Parameter(10.0, "times the distance of the start")

    kind = "T"
    points_at = ("loss", "backward", "scaled_backward", "step")
    inhibits = (*UNSTABLE, "norm.dead_layer", "norm.vanishing_by_depth")

    state = declare(
        _minimised=bool,
        _count=int,
        _first=list[float],
        _last=deque[float],
        _guess=float,
        _layers=int,
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._minimised = False  # some step followed the gradient downwards, or another loss
        self._count = 0  # steps that followed it upwards
        self._first: list[float] = []  # their first losses
        self._last: deque[float] = deque(maxlen=SPAN)
        self._guess = 0.0  # the loss of a model that guesses; 0: not known
        self._layers = 0  # that the optimizer trains

    def evaluate(self, window: Window) -> Outcome:
        """The direction of the step, and the loss."""
        facts = window.facts
        if facts.record.layers is not None:
            self._layers = max(self._layers, facts.record.layers.parameters)
        if self._minimised:
            return MINIMISED
        if facts.record.skipped or facts.record.by_hand or not facts.applied:
            return not_applicable("no step of an optimizer on a gradient")
        if may_be_opposed(facts):
            return OPPOSED
        terms = [t for t in facts.terms if t.weight and not t.loss_term.penalty]
        if not terms or not all(_is_criterion(t.loss_term) for t in terms):
            return NO_CRITERION
        if any(_is_descended(facts, t) for t in terms):
            self._minimised = True
            return MINIMISED
        return self._of_ascent(facts, terms[0])

    def _of_ascent(self, facts: StepFacts, term: WeightedTerm) -> Outcome:
        """All steps so far have followed the gradient upwards."""
        mean = facts.loss_token
        if mean is None or not math.isfinite(mean):
            return NO_LOSS
        loss = mean if term.positive else -mean
        self._count += 1
        self._guess = max(self._guess, _of_a_guess(term.loss_term))
        if len(self._first) < SPAN:
            self._first.append(loss)
        self._last.append(loss)
        if self._count < self.needed:
            return not_measured(f"needs {counted(self.needed, 'step')}")
        start, last = median(self._first), median(self._last)
        return self._finding(facts, start, last) if last > start else OK

    def _finding(self, facts: StepFacts, start: float, last: float) -> Outcome:
        cause = (
            "The optimizer has maximize=True, and nothing reverses the sign of the loss"
            if facts.record.maximises
            else "The gradient of the loss is multiplied by a negative number, and the optimizer "
            "minimises"
        )
        guess = self._guess
        severity, compared = self._severity(start, last), ""
        if guess:
            compared = f" A model that guesses has {significant(guess)}."
        return finding(
            severity,
            "The loss is maximised",
            f"{cause}: {counted(self._count, 'step')} followed the gradient of the loss upwards. "
            f"Its median was {significant(start)} in the first {SPAN} of these steps, and is "
            f"{significant(last)} in the last {SPAN}.{compared}",
            FIX,
            steps_upwards=self._count,
            maximize=facts.record.maximises,
            loss_first=start,
            loss_last=last,
            loss_of_a_guess=guess or None,
        )

    def _severity(self, start: float, last: float) -> Severity:
        """An error if the model began as one that guesses, and is sure of wrong answers now."""
        guess = self._guess
        if guess:
            is_new = start >= UNTRAINED * guess
            return "error" if is_new and last > self.times * max(start, guess) else "info"
        far = 0 < start < last / self.distance_times
        return "warning" if far and self._layers >= LAYERS else "info"


def _is_criterion(term: Term) -> bool:
    """Whether it is a criterion that is minimised, and weighs its elements equally."""
    is_named = term.kind.startswith((CROSS_ENTROPY, BINARY, *DISTANCES))
    return is_named and not (term.nonlinear or term.again or has_own_weights(term))


def _is_descended(facts: StepFacts, term: WeightedTerm) -> bool:
    """Whether the step lowers it; also if a loop reverses the gradient after backward."""
    return (term.positive == (term.factor >= 0)) != facts.record.maximises


def _of_a_guess(term: Term) -> float:
    """The loss of a model that guesses; 0: not known."""
    if term.kind.startswith(BINARY):
        return math.log(2)
    return math.log(term.classes) if term.classes and term.classes > 1 else 0.0
