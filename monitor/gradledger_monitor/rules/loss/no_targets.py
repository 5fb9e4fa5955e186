"""loss.no_targets"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from gradledger_monitor.ingest.schema import Term
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable
from gradledger_monitor.rules.sliding_count import push
from gradledger_monitor.rules.state import declare

FIX = """\
counted = (labels != -100).sum()
if counted == 0:
    dropped += 1                     # count and report what has no target
    print(f"no target in {dropped} batches, the last is {batch_index}")"""

CROSS_ENTROPY = "NllLoss"  # the kinds of its nodes begin with it


class NoTargets(Rule):
    """In many steps the cross entropy counts no target, so nothing is trained.

    **What it sees**

    In at least 10 of the last 100 steps, and in more than 20% of them, every loss of the step is a
    cross entropy that counts no target, on all ranks: all are ignored (``ignore_index``, -100). The
    norm of the applied gradients is 0.

    **Why it matters**

    The gradient of such a step is 0. The optimizer steps all the same, on its averages and the
    weight decay alone. The loss of the step is NaN, as a mean over nothing, or 0, if the division
    is guarded (``clamp(min=1)``): then a part of the reported loss is a 0 that looks like progress.

    **What to do**

    Count the labels that are not ignored, by batch. Often a prompt is masked that fills the whole
    sequence after truncation, a template that marks the answers is not found in the text, or a
    padding token is the end of the text, too.

    **When it is silent**

    A few such steps; steps with another loss, or with a target in any micro-batch of any rank;
    losses by token that are multiplied by a mask, or by rewards, which may all be 0; losses whose
    targets are not counted; other losses than cross entropies.

    **Incidents**

    textbook (prompts that fill the sequence after truncation; a response template that no text
    contains)
    """

    many = Parameter(10, "steps without a target that are reported")
    share = Parameter(0.2, "share of them among the recent steps", most=1.0)
    recent = Parameter(100, "number of recent steps")

    kind = "T"
    secondary = True
    points_at = ("loss", "backward", "scaled_backward")
    inhibits = ("norm.vanishing",)

    state = declare(_last=deque[bool], _empty=int)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._last: deque[bool] = deque(maxlen=self.recent)  # whether each counted no target
        self._empty = 0  # number of these in ``_last``

    def evaluate(self, window: Window) -> Outcome:
        """The terms of all micro-batches that the step applied."""
        facts = window.facts
        if facts.record.skipped:
            return OK
        terms = list(_terms(facts))
        if not any(term.kind.startswith(CROSS_ENTROPY) for term in terms):
            return not_applicable("no cross entropy in the loss")
        is_empty = facts.norm == 0 and facts.complete and all(map(_counts_nothing, terms))
        self._empty += push(self._last, is_empty)
        if self._empty < self.many or self._empty <= self.share * len(self._last):
            return OK
        steps = len(self._last)
        return finding(
            "warning",
            "Many steps count no target",
            f"In {self._empty} of the last {steps} steps, no target of the cross entropy counted: "
            "all were ignored. The gradient of such a step is 0, so nothing was trained on its "
            "data. Its loss is 0, or NaN as a mean over nothing.",
            FIX,
            without_targets=self._empty,
            of=steps,
        )


def has_no_target(facts: StepFacts) -> bool:
    """Whether the losses of all micro-batches are cross entropies whose targets are ignored."""
    terms = list(_terms(facts))
    return bool(terms) and all(map(_counts_nothing, terms))


def _terms(facts: StepFacts) -> Iterator[Term]:
    for applied in facts.applied_by_rank.values():
        for _, micro_batch in applied:
            yield from micro_batch.terms


def _counts_nothing(term: Term) -> bool:
    is_reduced = term.reduction != "none"  # else the weights of its tokens may all be 0
    is_cross_entropy = term.kind.startswith(CROSS_ENTROPY)
    return is_cross_entropy and is_reduced and term.tokens == 0 and bool(term.size)
