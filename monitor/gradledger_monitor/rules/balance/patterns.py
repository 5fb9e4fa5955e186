"""What a window's balance can show: patterns, and what is kept of earlier windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.readings import WeightedTerm
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.balance.after_backward import factor_of_loop, is_scaled_by_loop
from gradledger_monitor.rules.balance.beside import Beside, beside
from gradledger_monitor.rules.balance.evidence import (
    weight_of_micro_batch,
)
from gradledger_monitor.rules.number_text import counted, significant

Pattern = Literal[
    "fair",
    "unmeasured",
    "other_divisor",  # B differs between windows, and the divisor is no count of elements
    "all_positions",  # a loss may count those that the cross entropy beside it ignores by design
    "by_design",  # a contract other than the token mean, declared or chosen inside the loss
    "coefficient",  # a constant multiplier of the loss explains B
    "missing",  # B = K
    "term_missing",  # B of a further objective is K times its coefficient
    "term_padding",  # a further objective is divided by all positions, ignored ones too
    "smoothing",  # a label smoothing counts positions that its cross entropy ignores
    "term_world",  # B of a penalty is R times its coefficient: every rank adds it
    "double",  # B = 1/K
    "term_double",  # K divides a further objective twice, or it is a count of the objective, too
    "partial",  # B = k/K in a short or long window
    "partial_before",  # a fair window, which shows that B = k/K in the windows before it
    "world",  # B = R or 1/R
    "world_or_weight",  # B = R, and a constant in front of the loss is R too
    "ranks_left",  # B = R over the ranks that have not left a Join
    "sum",  # every token weighs 1: B = N
    "padding",  # the divisor counts all positions, ignored ones too
    "stale",  # the divisor is the number of tokens of an earlier window
    "early_step",  # K = 1 and B = 1/m
    "unprepared",  # the same, and Accelerate has stated at such a step that it accumulates
    "early_steps",  # K = 1, and the divisor is the count of several steps together
    "clipped",  # the loop itself scales the gradients to one norm
    "other_count",  # the divisor follows a count of another part of the data
    "wandering",  # equal weights, and B differs from window to window
    "constant",  # B is off, and always the same
    "pending",  # B is off, and a second window is needed
]

MOST_COUNTED = 6  # objectives of a window
VARIES = 10  # two balances differ if their relative difference exceeds this many tolerances
FAIR: tuple[Pattern, ...] = ("fair", "partial_before")
FAIR_UNTIL_RANKS_LEFT: tuple[Pattern, ...] = (*FAIR, "ranks_left")
NOT_MEASURED: tuple[Pattern, ...] = (
    "unmeasured",
    "other_divisor",
    "all_positions",
    "pending",
)
ONE_MORE = "needs one more window"
NORMALISED: tuple[Pattern, ...] = (*FAIR, "coefficient")  # B is 1, or a constant by design
STEADY: tuple[Pattern, ...] = (*NORMALISED, "constant")


@dataclass
class Diagnosis:
    """The pattern, the objective that shows it, and the ratio that matched (K, 1/m, R, ...).

    The intended balance is 1, or a ``constant`` in front of the loss.
    """

    pattern: Pattern
    reason: str = ""
    objective: Objective | None = None
    ratio: float = 1.0
    constant: float = 1.0  # what the loss is multiplied by on purpose; B is the ratio times it
    evidence: str = ""  # what shows the constant, as a sentence; empty if it is 1
    left_out: int = 0  # batches of the window that no backward followed

    def __init__(
        self,
        pattern: Pattern,
        reason: str = "",
        objective: Objective | None = None,
        ratio: float = 1.0,
        constant: float = 1.0,
        evidence: str = "",
        left_out: int = 0,
    ) -> None:
        self.pattern, self.reason, self.objective = pattern, reason, objective
        self.ratio, self.constant, self.evidence = ratio, constant, evidence
        self.left_out = left_out


class Counts(NamedTuple):
    """How many elements of an objective a window has, in one unit, and over all ranks."""

    objective: str
    unit: str
    window: float
    first: float  # in the first micro-batch
    last: float  # in the last one


class Closed(NamedTuple):
    """What the diagnosis keeps of an earlier window."""

    micro_batches: int
    balance: float | None
    tokens: float | None
    pattern: Pattern
    scaled_to: float | None = None  # the applied norm, if the loop scaled the gradients itself
    lr: float | None = None
    scale: float | None = None
    samples: int | None = None
    step: int = 0
    rate: float | None = None  # see ``StepFacts.step_rate``
    loss: float | None = None  # as the loop reports it
    number: int = 0  # of its last micro-batch in the process; 0: none
    unit: str = ""  # of ``tokens``: see ``Reading``
    # of a normalised main loss: the total weight of each micro-batch in the others, by their names
    further: tuple[tuple[str, float], ...] = ()
    counts: tuple[Counts, ...] = ()  # of a window that is not fair, the main objective first
    beside: tuple[Beside, ...] = ()
    losses: tuple[str, ...] = ()  # the forms of its objectives, see ``forms``; empty: not known
    coefficient: float | None = None  # of the main loss, if it is that of all micro-batches
    first: int = 0  # as ``number``, of its first micro-batch
    resumed: str = ""  # what the loop continues from here
    batches: int | None = None  # that the only training DataLoader yielded since the last step
    scaled_by: float | None = None  # with ``scaled_to``: what the loop multiplied the gradients by
    batch_tokens: int | None = None  # of all ranks, whatever their weights

    @classmethod
    def of(cls, facts: StepFacts, diagnosis: Diagnosis) -> Closed:
        """The summary of a window for later ones; ``balance`` is None if it was not measured."""
        ledger, micro_batches = facts.ledger, facts.record.micro_batches
        measured = facts.factor_unmeasured is None or facts.step_rate is not None
        return cls(
            facts.micro_batches_of(diagnosis.objective),
            ledger.balance if ledger is not None and measured else None,
            ledger.tokens if ledger is not None and facts.complete else None,
            diagnosis.pattern,
            facts.norm if is_scaled_by_loop(facts) else None,
            number(facts.record.lr),
            facts.scale,
            facts.samples,
            facts.step,
            facts.step_rate,
            facts.loss_reported,
            micro_batches[-1].number if micro_batches else 0,
            "" if facts.objective is None else facts.objective.reading.unit,
            tuple(_further(facts)) if diagnosis.pattern in NORMALISED else (),
            () if diagnosis.pattern in FAIR else tuple(counts_of(facts)),
            tuple(beside(facts)) if len(facts.objectives) > 1 else (),
            tuple(sorted(forms(facts.terms))),
            None if facts.objective is None else facts.objective.coefficient,
            micro_batches[0].number if micro_batches else 0,
            _resumed(facts),
            facts.record.batches,
            factor_of_loop(facts) if is_scaled_by_loop(facts) else None,
            facts.batch_tokens,
        )


def _resumed(facts: StepFacts) -> str:
    resumed = facts.record.resumed
    is_empty = resumed is not None and not resumed.trained  # as where Accelerate prepares it
    if facts.own_calls("load_state") and not is_empty:
        return "the state of the optimizer was loaded"
    replaced = facts.record.replaced
    if replaced is None:
        return ""
    steps = counted(replaced.steps, "step")
    before, now = number(replaced.lr), number(facts.record.lr)
    rates = ""
    several = facts.record.lrs  # others may have stayed
    if before is not None and now is not None and before != now and not several:
        rates = f" (learning rate {significant(before)}, now {significant(now)})"
    return f"this optimizer took over parameters that another one had trained for {steps}{rates}"


def _further(facts: StepFacts) -> Iterator[tuple[str, float]]:
    for objective in facts.objectives[1:]:
        weight = weight_of_micro_batch(facts, objective)
        if weight is not None:
            yield objective.name, weight


def counts_of(facts: StepFacts) -> Iterator[Counts]:
    """The elements of each objective, and their positions: labels of CTC, boxes of four numbers."""
    for objective in facts.objectives[:MOST_COUNTED]:
        of_unit: dict[str, dict[int, float]] = {"tokens": {}, "positions": {}}
        for term in objective.terms:
            for unit, count in (("tokens", term.tokens), ("positions", term.loss_term.positions)):
                counts = of_unit[unit]
                counts[term.micro_batch] = counts.get(term.micro_batch, 0.0) + (count or 0.0)
        for unit, counts in of_unit.items():
            first, last = counts[min(counts)], counts[max(counts)]
            yield Counts(objective.name, unit, sum(counts.values()), first, last)


def forms(terms: Sequence[WeightedTerm]) -> set[str]:
    """How the losses of some terms are computed: kind, reduction, and what this reduces."""
    losses = {(t.loss_term.kind, t.loss_term.reduction, t.loss_term.of) for t in terms}
    return {f"{kind} {reduction} {of or ''}" for kind, reduction, of in losses}


def of_same_loss(facts: StepFacts, past: Sequence[Closed]) -> Sequence[Closed]:
    """The earlier windows that have the main loss, too.

    A phase of training with another loss has its own divisor: its windows show nothing of this one.
    Phases may differ only in the constant in front of the loss. One that is new in each window, as
    of a ramp, separates none, and neither do several in this one. Nor does any once a window was
    fair: the loop then divides by K, and another constant, which may contain that division, weighs
    the loss.
    """
    main = None if facts.unmeasured else facts.objective
    if main is None or not past:
        return past
    of_main, coefficient = forms(main.terms), main.coefficient
    same = [c for c in past if not c.losses or not of_main.isdisjoint(c.losses)]
    several = coefficient is None and any(t.loss_term.coefficient is not None for t in main.terms)
    if several or any(c.pattern in FAIR for c in same):
        return same
    return [c for c in same if c.coefficient == coefficient] or same


def is_fair(facts: StepFacts, objective: Objective) -> bool:
    """Whether an objective satisfies the contract with the declared scale."""
    return objective.reading.is_fair(facts.tolerance, facts.run.declared_scale or 1.0)


def differs_from_earlier(balance: float, past: Sequence[Closed], tolerance: float) -> bool:
    """Whether a balance differs from one of the earlier balances that were off."""
    return any(abs(balance / earlier - 1) > VARIES * tolerance for earlier in wrong_balances(past))


def wrong_windows(past: Sequence[Closed]) -> list[Closed]:
    """Those that were off, without those whose ranks explain it: they show nothing of others."""
    return [c for c in past if c.balance is not None and c.pattern not in FAIR_UNTIL_RANKS_LEFT]


def wrong_balances(past: Sequence[Closed]) -> list[float]:
    return [c.balance for c in wrong_windows(past) if c.balance is not None]
