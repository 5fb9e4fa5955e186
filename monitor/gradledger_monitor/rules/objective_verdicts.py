"""What the rules on reductions state about each objective of a window, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradledger_monitor.model.findings import Outcome, Status
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.readings import Reading
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.token_ledger import Ledger, total
from gradledger_monitor.rules.balance.diagnosis import why_no_loss_is_evaluated
from gradledger_monitor.rules.balance.evidence import Near
from gradledger_monitor.rules.balance.further import may_weigh_one_over_k
from gradledger_monitor.rules.balance.patterns import NOT_MEASURED, Pattern
from gradledger_monitor.rules.balance.several_losses import why_undecided
from gradledger_monitor.rules.objective_names import element_name, objective_name
from gradledger_monitor.rules.reduction.token_weights_unequal import TokenWeightsUnequal
from gradledger_monitor.rules.reduction.weights_not_evaluated import why_not_evaluated
from gradledger_monitor.rules.rule import Window

_UNITS = {
    "class_weight": "class weights",
    "rows": "rows",
    "weighted_rows": "rows",
    "positions": "positions",
    "elements": "elements",
    "counted_elements": "elements",
    "loss_weights": "weights of the loss",
    "micro_batches": "micro-batches",
}
BALANCED = "balanced"
OWN_WEIGHTS = ", besides the weights that the loss gives its elements, which are not judged"
_WRONG: dict[Pattern | None, str] = {
    "missing": "not divided by K = {k}",
    "term_missing": "not divided by K = {k}",
    "term_padding": "divided by all positions, ignored ones included",
    "smoothing": "the smoothing counts positions that the cross entropy ignores",
    "term_world": "added once by every rank",
    "double": "divided by K = {k} once too often",
    "term_double": "divided by K = {k}, and by K or a count of the loss besides",
    "partial": "divided by {divisor}, and not by this window's number of micro-batches, {k}",
    "world": "off by the number of ranks",
    "world_or_weight": "multiplied by the number of ranks, or weighted by it",
    "ranks_left": "multiplied by the number of all ranks, some of which have left the Join",
    "sum": "not divided by the number of {element}s",
    "padding": "divided by all positions, ignored ones included",
    "stale": "equal weights, but divided by the number of {element}s of an earlier window",
    "other_count": "equal weights, but divided by a count of other data",
    "early_step": "divided for several micro-batches, and applied after one",
    "early_steps": "divided for several micro-batches, and applied after one",
    "unprepared": "divided for several micro-batches, and applied after one",
    "wandering": "equal weights, but not divided by N",
    "constant": "equal weights, and a balance other than 1",
}
_OF_EQUAL_WEIGHTS = ("stale", "other_count", "wandering", "constant")


@dataclass(frozen=True)
class ObjectiveVerdict:
    """One objective of a window: its numbers, and whether it is what a token mean would give.

    ``count`` is N in ``unit``, ``share`` its part of the gradient weight of all objectives. A
    penalty on the parameters has no tokens, and no misallocation.
    """

    key: str  # the same in all windows of a run: kind and number of the loss
    name: str
    unit: str | None
    count: float | None
    balance: float | None
    misallocation: float | None
    coefficient: float | None
    share: float | None
    status: Status
    text: str
    reading: Reading  # its terms and their ledger
    # What separates it from losses of the same key in other windows: the form of its expression,
    # and the layer below it, if it is alone in its micro-batches.
    form: str = ""
    head: int | None = None

    @property
    def ledger(self) -> Ledger:
        """The ledger in the unit that is shown."""
        return self.reading.ledger


def shown_objectives(facts: StepFacts) -> list[Objective]:
    """The objectives of a window, the heaviest first; losses that are one together are one."""
    if facts.together is None:
        return facts.objectives
    parts = {term.term for term in facts.together.terms}
    return [facts.together, *(o for o in facts.objectives if o.name not in parts)]


def objective_verdicts(window: Window) -> list[ObjectiveVerdict]:
    """The verdict of each objective of a window; empty if its weights were not measured."""
    facts = window.facts
    if facts.unmeasured is not None:
        return []
    objectives = shown_objectives(facts)
    weight = total(o.ledger.balance for o in objectives)
    return [_verdict(window, o, objectives, weight) for o in objectives]


def _verdict(
    window: Window, objective: Objective, objectives: list[Objective], weight: float
) -> ObjectiveVerdict:
    facts = window.facts
    status, text = _status_and_text(window, objective, objectives)
    ledger, penalty = objective.ledger, objective.is_penalty
    balance_measured = facts.factor_unmeasured is None
    return ObjectiveVerdict(
        key=objective.name,
        name=objective_name(objective, facts.objectives),
        unit=None if penalty else _unit(objective),
        count=None if penalty else ledger.tokens,
        balance=ledger.balance if balance_measured else None,
        misallocation=None if penalty else ledger.misallocation,
        coefficient=objective.coefficient,
        share=ledger.balance / weight if len(objectives) > 1 and weight else None,
        status=status,
        text=text,
        reading=objective.reading,
        form=_form(objective),
        head=_head(objective, objectives),
    )


def _form(objective: Objective) -> str:
    """How its elements become one number, without any number, which may vary.

    A regularisation with windows to itself differs in it from the loss of the other windows.
    """
    terms = [term.loss_term for term in objective.terms]
    forms = {(t.reduction, t.of or "", t.coefficient is not None) for t in terms}
    return ", ".join(f"{reduction} {of} {has}" for reduction, of, has in sorted(forms))


def _head(objective: Objective, objectives: Sequence[Objective]) -> int | None:
    heads = {term.loss_term.head for term in objective.terms}
    return heads.pop() if len(objectives) == len(heads) == 1 else None


def _unit(objective: Objective) -> str:
    return _UNITS.get(objective.reading.unit) or f"{element_name(objective)}s"


def _status_and_text(
    window: Window, objective: Objective, objectives: list[Objective]
) -> tuple[Status, str]:
    """The status and its reason: what the rules find comes before what they cannot evaluate."""
    facts = window.facts
    if facts.run.contract in ("sequence", "sample"):
        return "not_applicable", f"the run declares one weight per {facts.run.contract}"
    diagnosis = next((d for d in window.diagnoses if d.objective in (objective, None)), None)
    pattern = None if diagnosis is None else diagnosis.pattern
    if diagnosis is not None and pattern == "by_design":
        return "not_applicable", diagnosis.reason
    if undecided := why_no_loss_is_evaluated(facts) or why_undecided(facts, window.of_same_loss):
        return "not_measured", undecided
    excuse = _excuse(window, objective, objectives)
    even = objective.is_penalty or objective.reading.is_even(facts.tolerance)
    if excuse is None and not even and pattern not in ("padding", "term_padding"):
        return "finding", f"{element_name(objective)} weights differ"
    if pattern in _WRONG and (even or pattern not in _OF_EQUAL_WEIGHTS):
        k, ratio = facts.micro_batches_of(objective), diagnosis.ratio if diagnosis else 1.0
        divisor = round(k / ratio) if pattern == "partial" else k
        return "finding", _WRONG[pattern].format(
            k=k, divisor=divisor, element=element_name(objective)
        )
    if excuse is not None:
        return excuse.status, excuse.reason
    if facts.factor_unmeasured is not None:
        return "ok", f"equal weights; B not measured: {facts.factor_unmeasured}"
    if diagnosis is not None and pattern in NOT_MEASURED:
        return "not_measured", diagnosis.reason
    if objective.is_of_weighted_means(facts.tolerance):
        weights = "weights" if objective.weighted_inside else "class weights"
        return "ok", f"micro-batches of equal weight, each the mean by its own {weights}"
    if objective.is_mean_of_entries:
        return "ok", "equal weights of entries: its mean divides by the classes, too"
    besides = OWN_WEIGHTS if objective.weighted_inside else ""
    text = BALANCED if pattern in ("fair", "partial_before") else _equal(facts, objective)
    return "ok", f"{text}{besides}"


def _excuse(window: Window, objective: Objective, objectives: list[Objective]) -> Outcome | None:
    """Why the weights cannot be evaluated, or need not."""
    losses = [o for o in objectives if not o.is_penalty]
    if objective not in losses:
        return None
    return why_not_evaluated(objective, losses, window, TokenWeightsUnequal().warning)


def _equal(facts: StepFacts, objective: Objective) -> str:
    coefficient, balance = objective.coefficient, objective.ledger.balance
    if may_weigh_one_over_k(facts, objective):
        return "equal weights; its constant is 1/K, or a weight that K does not divide"
    if coefficient and Near(balance, facts.tolerance)(abs(coefficient)):
        return "equal weights; B is its coefficient"
    other = _divided_by_the_count_of(facts, objective)
    if other is not None:
        name, of_other = objective_name(other, facts.objectives), f"{element_name(other)}s"
        return f"equal weights; its divisor is the number of {of_other} of the {name}"
    return "equal weights"


def _divided_by_the_count_of(facts: StepFacts, objective: Objective) -> Objective | None:
    """Another objective whose number of tokens divides each term of this one, as two masks show.

    A loss on a part of the tokens may be divided by all of them on purpose.
    """
    divisors = [set(map(number, term.loss_term.divisors)) for term in objective.terms]
    own = objective.ledger.tokens
    for other in facts.objectives:
        count = other.ledger.tokens
        if count != own and count > 1 and all(count in of_term for of_term in divisors):
            return other
    return None
