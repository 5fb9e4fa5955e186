"""A loss term while its window is open: raw evidence, resolved into a wire record later."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from gradledger.capture.async_copy import Deferred
from gradledger.records import MicroBatch, Reduction, Term

HALF = (torch.float16, torch.bfloat16)
ROUNDING = 1e-6  # of sums of weights, relative

Constant = float | Deferred  # a number that the graph holds; one on a device is read later

LEARNED = "the factor that the model learns for this loss is 0, not finite, or was not read"
NO_LOSS = "none of the losses in the graph of the backward reaches this optimizer"


class Inferred(Protocol):
    """What one micro-batch shows of a loss whose reduction several of them show."""

    def add_evidence(self, windows: dict[str, Any]) -> None:
        """Add what this one shows, to the window of its function too; once, before any resolves."""

    def resolve(self, term: Term) -> None:
        """Fill the wire record."""

    def deferred(self) -> Iterator[Deferred]:
        """The values that are read later."""


class PassedOn(Protocol):
    """What shows whether a script passes on the gradients of detached tensors as they are."""

    def reason(self) -> str | None:
        """Why the weights are not known; None if they are."""

    def deferred(self) -> Iterator[Deferred]:
        """The values that are read later."""


def add_evidence(inferred: Iterable[Inferred | None]) -> None:
    """Add what all micro-batches of a window show."""
    windows: dict[str, Any] = {}  # by function
    for each in inferred:
        if each is not None:
            each.add_evidence(windows)


class Part(NamedTuple):
    """The only input of a concatenation that has a gradient: its index, of how many inputs.

    ``beside``: elements of the largest parameter that gets a gradient by another way, too.
    """

    part: int
    parts: int
    beside: int


@dataclass(slots=True)
class OpenTerm:
    """A loss node of the graph; ``upstream`` is set when backward reaches the node."""

    kind: str
    reduction: Reduction
    tokens: Deferred | int | None = None
    size: int | None = None
    rows: int | None = None
    classes: int | None = None
    samples: int | None = None
    positions: int | None = None
    class_weight: Deferred | None = None
    valid: Deferred | None = None
    padded: Deferred | None = None  # of a mean, the elements that are no padding; negative: no mask
    ignored: int | None = None
    smoothed: int | None = None
    undivided: bool | None = None
    divisors: tuple[Constant, ...] = ()  # between the root and the term, from the root on
    factors: tuple[Constant, ...] = ()
    learned: tuple[Constant, ...] = ()  # factors that the model learns: no weights count them
    head: int | None = None
    logits: int | None = None
    module: str | None = None
    elements: int | None = None
    element_reduction: Reduction = "sum"
    element_upstream: Deferred | None = None  # the gradient at the outermost reduction
    of: str | None = None
    nonlinear: bool = False
    function: int | None = None
    function_upstream: Deferred | None = None  # the gradient at this function
    penalty: bool = False
    compares: bool = False
    averaged: int | None = None
    again: bool = False
    part: Part | None = None
    # by window (its id): whether the gradient reaches its optimizer, None if that is not known; no
    # dictionary if there is one optimizer, or one loss in the backward
    reach: dict[int, bool | None] | None = None
    task: int | None = None  # see ``losses.tasks``: its head, if it alone reaches an optimizer
    uniform: bool = False  # the tokens are the elements: they have the same weight
    per_token: bool = False  # ``upstream`` is that of a vector, also if ``reduction`` is not none
    upstream: Deferred | None = None  # scalar, or [tokens, total, least, most] of a vector
    value: Deferred | None = None  # of the loss alone, in the first micro-batches
    inferred: Inferred | None = None  # of a loss that hides its graph
    passed_on: PassedOn | None = None  # of a loss on detached tensors
    input: str | None = None  # of a cross entropy, in the first micro-batches
    target: Any = None  # the loss's target, held only until backward begins
    missing: dict[str, str] = field(default_factory=dict)

    def resolve(self) -> Term:
        """The wire record."""
        term = Term(self.kind, self.reduction, size=self.size, rows=self.rows, classes=self.classes)
        term.samples, term.positions, term.undivided = self.samples, self.positions, self.undivided
        term.head, term.logits, term.missing = self.head, self.logits, dict(self.missing)
        term.smoothed, term.module, term.ignored = self.smoothed, self.module, self.ignored
        self._resolve_constants(term)
        if self.tokens is not None:
            counted = self.tokens
            term.tokens = counted if isinstance(counted, int) else round(counted.value())
        if self.class_weight is not None:
            term.class_weight = self.class_weight.value()
        if self.valid is not None:
            term.valid = round(self.valid.value())
        term.of, term.nonlinear, term.penalty = self.of, self.nonlinear, self.penalty
        term.again, term.compares, term.input = self.again, self.compares, self.input
        term.averaged = self.averaged
        if self.part is not None:
            term.part, term.parts, term.beside_parts = self.part
        self._resolve_elements(term)
        upstream = self.function_upstream
        if upstream is not None and not upstream.has_no_copy:
            term.function, term.function_weight = self.function, upstream.value()
        if self.inferred is not None:
            self.inferred.resolve(term)
        elif self.uniform and term.element_weight is not None:
            term.weight = term.element_weight
        elif self.upstream is None or self.upstream.has_no_copy:
            term.missing.setdefault("weight", "backward did not reach this loss node")
        elif self.per_token or self.reduction == "none":
            if "tokens" not in term.missing:
                _vector_weight(term, self.upstream.values())
        else:
            _scalar_weight(term, self.upstream.value())
        if self.padded is not None and not self.padded.has_no_copy:
            _leave_out_padding(term, round(self.padded.value()))
        if self.learned:
            self._divide_by_learned(term)
        reason = None if self.passed_on is None else self.passed_on.reason()
        if reason is not None:
            term.missing.setdefault("weight", reason)
            term.weight = term.element_weight = term.function_weight = None
            term.weight_min = term.weight_max = term.weight_size = None
        return term

    def _divide_by_learned(self, term: Term) -> None:
        """The weights as they would be if the factors that the model learns were 1."""
        learned = [_number_of(each) for each in self.learned]
        factor = math.prod(each for each in learned if each is not None)
        readable = None not in learned and factor and math.isfinite(factor)
        for name in ("weight", "element_weight", "function_weight"):
            weight = getattr(term, name)
            if weight is not None:
                setattr(term, name, weight / factor if readable else None)
        for name in ("weight_min", "weight_max", "weight_size"):
            weight = getattr(term, name)
            if weight is not None:
                setattr(term, name, weight / abs(factor) if readable else None)
        if not readable:
            term.missing.setdefault("weight", LEARNED)

    def share_of_root(self) -> float | None:
        """What the loss adds to the root of backward, if its value was computed."""
        value, upstream = self.value, self.upstream or self.element_upstream
        if value is None or upstream is None or self.nonlinear or self.per_token:
            return None
        if value.has_no_copy or upstream.has_no_copy:
            return None
        return value.value() * upstream.value()

    def deferred(self) -> Iterator[Deferred]:
        """The values that are read later."""
        yield from present(self.tokens, self.class_weight, self.valid, self.padded, self.upstream)
        yield from present(self.element_upstream, self.function_upstream, self.value)
        yield from present(*self.divisors, *self.factors, *self.learned)
        yield from () if self.inferred is None else self.inferred.deferred()
        yield from () if self.passed_on is None else self.passed_on.deferred()

    def _resolve_constants(self, term: Term) -> None:
        divisors = [_number_of(each) for each in self.divisors]
        term.divisors = [each or 0.0 for each in divisors if each != 1.0]
        factors = [_number_of(each) for each in self.factors]
        if factors and None not in factors:
            numbers = [each for each in factors if each is not None]
            outer = next((each for each in numbers if each != 1.0), 1.0)
            term.coefficient = math.prod(numbers)
            term.outer_coefficient = None if outer == term.coefficient else outer

    def _resolve_elements(self, term: Term) -> None:
        upstream = self.element_upstream
        if self.elements is None or upstream is None or upstream.has_no_copy:
            return
        divisor = self.elements if self.element_reduction == "mean" else 1
        if divisor:
            term.elements, term.element_weight = self.elements, upstream.value() / divisor


@dataclass(slots=True)
class Reach:
    """Which optimizers the losses of a backward reach, besides what each term states."""

    walk: Any = None  # until the graph has been followed
    shards: dict[int, int] = field(default_factory=dict)  # by what FSDP2 gathered, both by id
    unknown: str = ""  # why it is not known of some losses
    target: OpenTerm | None = None  # whose targets were copied
    steppers: dict[int, int] = field(default_factory=dict)  # optimizers (by index), their windows
    # windows whose optimizer steps on the same backwards as all that share them
    in_step: set[int] = field(default_factory=set)


def keep_own(
    record: MicroBatch, terms: list[OpenTerm], reach: Reach | None, window: int
) -> MicroBatch:
    """The record of the backward without losses whose gradient does not reach a window's optimizer.

    Where that is not known of a loss, it counts if all optimizers step on the same backwards. What
    it states of the window is then true of one of them.
    """
    reached = [None if term.reach is None else term.reach.get(window, ...) for term in terms]
    if reach is None or ... in reached:
        return record
    doubt = None in reached and window not in reach.in_step
    own = [index for index, reaches in enumerate(reached) if reaches is not False]
    if doubt or not own:
        record.missing = {**record.missing, "reach": reach.unknown if doubt else NO_LOSS}
        return record
    record.elsewhere = len(terms) - len(own)
    record.terms = [record.terms[index] for index in own]
    if record.elsewhere and len(own) == 1:
        record.terms[0].head = terms[own[0]].task
    if record.constant_target and all(terms[index] is not reach.target for index in own):
        record.fingerprint, record.constant_target, record.consecutive_target = None, None, False
    return record


def shares_loss(terms: list[OpenTerm], reach: Reach | None, window: int, optimizer: int) -> bool:
    """Whether a loss reaches both this window's optimizer and another one (by index)."""
    other = None if reach is None else reach.steppers.get(optimizer)
    if other is None or any(term.reach is None for term in terms):
        return True
    return any(t.reach.get(window, True) and t.reach.get(other, True) for t in terms if t.reach)


def note_step(window: Any, index: int, windows: Any) -> None:
    """An optimizer steps: which others step on the same backwards, in this round or the last."""
    own = frozenset(counted.micro_batch.number for counted in window.micro_batches)
    reaches = [c.micro_batch.reach for c in window.micro_batches if c.micro_batch.reach]
    others = [other for other in windows if other is not window] if reaches else ()
    in_step = all(_is_in_step(window, own, other) for other in others)
    for reach in reaches:
        reach.steppers[index] = id(window)
        if in_step:
            reach.in_step.add(id(window))
    window.stepped_on = own


def _is_in_step(window: Any, own: frozenset[int], other: Any) -> bool:
    now = {counted.micro_batch.number for counted in other.micro_batches}
    if own & now:  # it steps next
        return own == now and bool(other.stepped_on) and window.stepped_on == other.stepped_on
    return not own & other.stepped_on or own == other.stepped_on


def _number_of(constant: Constant) -> float | None:
    """None if it is on a device that did not send it."""
    if isinstance(constant, float):
        return constant
    return None if constant.has_no_copy else constant.value()


def present(*items: object) -> Iterator[Deferred]:
    """Those of the items that are values to be read later."""
    for item in items:
        if isinstance(item, Deferred):
            yield item


def _leave_out_padding(term: Term, left: int) -> None:
    """A mean of which padding has no gradient, as a vector that is divided by all its elements."""
    if left < 0 or term.weight is None:
        return
    term.elements, term.element_weight = term.tokens, term.weight
    term.reduction, term.tokens = "none", left
    term.weight_min = term.weight_max = term.weight


def _scalar_weight(term: Term, upstream: float) -> None:
    if term.reduction == "sum":
        term.weight = upstream
    elif term.tokens:
        term.weight = upstream / term.tokens


def _vector_weight(term: Term, summary: list[float]) -> None:
    tokens, total, least, most, absolute = summary
    term.tokens = round(tokens) if tokens == tokens else None
    if term.tokens:
        term.weight, term.weight_min, term.weight_max = total / term.tokens, least, most
        if absolute > abs(total) * (1 + ROUNDING):
            term.weight_size = absolute / term.tokens
