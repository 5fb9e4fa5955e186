"""loss.wrong_input"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gradledger_monitor.ingest.schema import Term
from gradledger_monitor.model.findings import Outcome, Severity
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable
from gradledger_monitor.rules.state import declare

CROSS_ENTROPY, BINARY = "NllLoss", "BinaryCrossEntropyWithLogits"  # the kinds begin with these

FIX = """\
# the model returns logits, without an activation: the loss applies it
loss = torch.nn.functional.cross_entropy(logits, labels)
probabilities = logits.softmax(-1)       # for metrics alone"""

FIX_BINARY = """\
# the model returns logits, without an activation: the loss applies the sigmoid
loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
probabilities = logits.sigmoid()         # for metrics alone"""

NONE = "no cross entropy whose input was read: inputs are read in the first 16 micro-batches only"


class _Mistake(NamedTuple):
    """An input that a loss should not get, and what a finding states about it."""

    input: str
    severity: Severity
    title: str
    text: str
    fix: str


_BOUNDED = (
    "It is computed from numbers between 0 and 1 as if they were logits: the probability of a "
    "class never exceeds e / (e + C - 1) for C classes, so the loss stays far above 0, and its "
    "gradient is small where the model is most wrong."
)
_MISTAKES: Mapping[tuple[str, str], _Mistake] = {
    (CROSS_ENTROPY, "log_softmax(softmax)"): _Mistake(
        "the output of a softmax, and applies another one",
        "warning",
        "The cross entropy gets probabilities: softmax is applied twice",
        _BOUNDED,
        FIX,
    ),
    (CROSS_ENTROPY, "log_softmax(sigmoid)"): _Mistake(
        "the output of a sigmoid, and applies a softmax",
        "info",
        "The cross entropy gets the output of a sigmoid",
        _BOUNDED,
        FIX,
    ),
    (CROSS_ENTROPY, "softmax"): _Mistake(
        "the output of a softmax",
        "warning",
        "nll_loss gets probabilities, and not their logarithms",
        "The loss is the negative probability of the class, between -1 and 0, and not the negative "
        "logarithm of it. Its gradient is small where the model is most wrong.",
        FIX,
    ),
    (CROSS_ENTROPY, "linear"): _Mistake(
        "the output of a layer",
        "warning",
        "nll_loss gets the output of a layer, and not log-probabilities",
        "The loss is the negative output for the class. It has no lower bound, unless the outputs "
        "have one, and this backward does not lower the outputs for the other classes.",
        FIX,
    ),
    (BINARY, "sigmoid"): _Mistake(
        "the output of a sigmoid",
        "warning",
        "The sigmoid is applied twice",
        "binary_cross_entropy_with_logits applies a sigmoid to its input, which is the output of "
        "a sigmoid, between 0 and 1: no probability that it computes is below 0.5 or above 0.74.",
        FIX_BINARY,
    ),
    (BINARY, "softmax"): _Mistake(
        "the output of a softmax",
        "info",
        "binary_cross_entropy_with_logits gets the output of a softmax",
        "It applies a sigmoid to its input, which is between 0 and 1: no probability that it "
        "computes is below 0.5 or above 0.74.",
        FIX_BINARY,
    ),
}
# Another backward of the window may compute the rest of a correct loss.
_MAY_BE_A_PART = {(CROSS_ENTROPY, "softmax"), (CROSS_ENTROPY, "linear")}


class WrongInput(Rule):
    """A cross entropy gets probabilities where it takes logits, or logits for log-probabilities.

    **What it sees**

    The operations below the loss in the graph of the first 16 micro-batches: in 2 of them or more,

    - ``cross_entropy`` of the output of a softmax over as many classes: softmax is applied twice;
    - ``nll_loss`` of the output of a softmax, without the logarithm, or of a layer, if each
      backward of the window is of such a loss alone: only divided, without weights;
    - ``binary_cross_entropy_with_logits`` of the output of a sigmoid.

    Between the two are only reshapes, casts and selections. A sigmoid below a cross entropy, and a
    softmax below a binary one, are information.

    **Why it matters**

    Nothing fails: the loss falls, slowly, and the model may reach most of its accuracy. But its
    probabilities cannot approach 0 or 1, and the gradient vanishes where the model is certain and
    wrong. The negative output of a layer has no lower bound: the loss may fall for ever.

    **What to do**

    Return logits from the model, and use ``cross_entropy`` or ``binary_cross_entropy_with_logits``,
    which apply the activation themselves, in a stable way. Or use ``nll_loss`` with
    ``log_softmax``.

    **When it is silent**

    Probabilities that are multiplied, clamped or combined before the loss; ``log_softmax`` twice,
    which changes nothing; losses that are written by hand, hidden in one function or compiled;
    ``cross_entropy`` with probabilities as targets. And ``nll_loss`` of outputs that are not
    log-probabilities, if it is multiplied or something is added: the sum may be a correct loss,
    such as the score of a label and the logarithm of the partition function.

    **Incidents**

    textbook (a softmax as the last layer of the model, and ``CrossEntropyLoss``)
    """

    by_window = False
    points_at = ("loss", "backward", "scaled_backward")
    needed = Parameter(2, "micro-batches in which the loss gets such an input")

    state = declare(_counts=list[int])

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._counts = [0] * len(_MISTAKES)  # micro-batches with each

    def evaluate(self, window: Window) -> Outcome:
        """The terms of the micro-batches whose graph was read."""
        micro_batches = [m for r in window.facts.records.values() for m in r.micro_batches]
        inputs = [{each for t in m.terms if (each := _input_of(t))} for m in micro_batches]
        if not any(inputs):
            return not_applicable(NONE)
        for index, (mistaken, mistake) in enumerate(_MISTAKES.items()):
            if mistaken not in _MAY_BE_A_PART or all(mistaken in of_one for of_one in inputs):
                self._counts[index] += sum(mistaken in of_one for of_one in inputs)
            times = self._counts[index]
            if times >= self.needed:
                return finding(
                    mistake.severity,
                    mistake.title,
                    f"In {counted(times, 'early micro-batch')}, the loss gets {mistake.input}. "
                    f"{mistake.text}",
                    mistake.fix,
                    micro_batches=times,
                )
        return OK


def _input_of(term: Term) -> tuple[str, str] | None:
    """The loss and its input, if that was read."""
    if term.input is None:
        return None
    loss = next((kind for kind in (CROSS_ENTROPY, BINARY) if term.kind.startswith(kind)), "")
    return loss, term.input
