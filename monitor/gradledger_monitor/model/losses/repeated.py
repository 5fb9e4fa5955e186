"""Backwards of a window whose losses are others' or earlier ones, and those that are discarded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from gradledger_monitor.ingest.schema import MicroBatch, StepRecord, Term
from gradledger_monitor.model.losses.names import IndexedMicroBatches, have_separate_calls
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.tolerances import SAMPLE, SAMPLE_HALF

EQUAL_LOSS = 1e-5  # relative difference of one loss that is computed twice
LossKey = tuple[str, int | None]  # the kind of a loss, and its head
UNREACHED = "backward did not reach this loss node"  # as the hooks report it

IN_PARTS = (
    "several backwards of the window start from the very same loss, and whether they add the same "
    "gradients, or those of other parameters each (inputs=), is not known"
)


def leaked_losses(applied: IndexedMicroBatches) -> list[int]:
    """The indices of micro-batches of a loss on which another optimizer has already stepped.

    None if all have the same losses, at the same lines or not equally often at each of them, or if
    it has stepped on all: two optimizers then share a loss.
    """
    claimed = [index for index, m in applied if m.claimed]
    if not 0 < len(claimed) < len(applied):
        return []
    losses = {tuple((t.kind, t.head, t.reduction) for t in m.terms) for _, m in applied}
    calls = ({m.call for _, m in applied if m.claimed is claims} for claims in (True, False))
    apart = have_separate_calls(applied) and set.isdisjoint(*calls)
    return claimed if len(losses) > 1 or apart else []


def applied_of(record: StepRecord) -> IndexedMicroBatches:
    """Micro-batches since the gradients were last absent or zero, with their indices.

    The gradients of those before were discarded: another loss's backward leaked into them, or
    accumulated gradients were zeroed.
    """
    begin = 0
    for index, micro_batch in enumerate(record.micro_batches):
        if micro_batch.fresh:
            begin = index
    return list(enumerate(record.micro_batches))[begin:]


def discarded(record: StepRecord, applied: IndexedMicroBatches) -> list[MicroBatch]:
    """Micro-batches that were zeroed before any optimizer stepped on them, and do not run again.

    Those before a change of the parameters were applied by other means, or serve to find it (SAM).
    """
    unmoved, _ = _zeroed(record)
    again = _losses_by_data(record, applied)
    return [m for m in unmoved if data_of(m) not in again]


def zeroed_beside_others(record: StepRecord, applied: IndexedMicroBatches) -> list[MicroBatch]:
    """Micro-batches that were zeroed, while another loss of the same data was applied.

    They serve a measurement, such as of a norm, or were zeroed by mistake.
    """
    unmoved, _ = _zeroed(record)
    again = _losses_by_data(record, applied)
    pairs = [(m, again[data]) for m in unmoved if (data := data_of(m)) in again]
    return [m for m, losses in pairs if not all(_is_among(one, losses) for one in _losses_of(m))]


def have_calls_and_data_apart(lost: Sequence[MicroBatch], applied: IndexedMicroBatches) -> bool:
    """Whether these, which were zeroed, have other backward calls and targets than those applied.

    Of a loop that accumulates, the last micro-batch alone may have another call, which is known by
    ``no_sync``.
    """
    calls = {m.call for _, m in applied}
    data = {data_of(m) for _, m in applied}
    return None not in calls and all(
        m.call is not None
        and m.call not in calls
        and m.wrapper != "no_sync"
        and data_of(m) not in (None, *data)
        for m in lost
    )


def has_batch_for_each(record: StepRecord) -> bool:
    """Whether one DataLoader delivered as many batches in the window as it has backwards, or more.

    Another one may deliver those on which gradients are measured.
    """
    drawn = max(record.loader_batches, default=0) or record.batches
    return drawn is not None and drawn >= len(record.micro_batches)


def left_out_of_second_pass(record: StepRecord, applied: IndexedMicroBatches) -> list[MicroBatch]:
    """Micro-batches that only moved the parameters (SAM), while others of them ran again."""
    _, moving = _zeroed(record)
    again = _losses_by_data(record, applied)
    left_out = [m for m in moving if data_of(m) not in again]
    return left_out if len(left_out) < len(moving) else []


def _zeroed(record: StepRecord) -> tuple[list[MicroBatch], list[MicroBatch]]:
    """The micro-batches that were zeroed: with unchanged parameters, and after a change of them."""
    unmoved: list[MicroBatch] = []
    moving: list[MicroBatch] = []
    held: list[MicroBatch] = []
    for m in record.micro_batches:
        if m.fresh:
            (moving if m.parameters_changed else unmoved).extend(held)
            held = []
        held.append(m)
    return _unclaimed(unmoved), _unclaimed(moving)


def _unclaimed(micro_batches: list[MicroBatch]) -> list[MicroBatch]:
    """Those of no other optimizer, which are no attack either."""
    return [m for m in micro_batches if not m.claimed and not m.reaches_input]


def _losses_by_data(
    record: StepRecord, applied: IndexedMicroBatches
) -> dict[float | None, set[LossKey]]:
    again: dict[float | None, set[LossKey]] = {}
    for _, m in applied:
        again.setdefault(data_of(m), set()).update(_losses_of(m))
    if not record.closure:  # which an optimizer may evaluate several times, on the same data
        again.pop(None, None)
    return again


def data_of(micro_batch: MicroBatch) -> float | None:
    """The fingerprint of its targets, if they depend on the data; None if they show nothing."""
    return None if micro_batch.constant_target else number(micro_batch.fingerprint)


def backwards_for_inputs(applied: IndexedMicroBatches) -> int:
    """The first backwards, on the batch of the last ones, if they gave a gradient to an input.

    The last ones are of another line, or give none.
    """
    batches = [micro_batch for _, micro_batch in applied]
    data = {data_of(each) for each in batches}
    if len(data) > 1 or None in data:
        return 0
    kinds = [(each.call, each.reaches_input) for each in batches]
    first = kinds[: len(kinds) - kinds.count(kinds[-1])]
    return len(first) if kinds[-1] not in first and all(reaches for _, reaches in first) else 0


def _losses_of(micro_batch: MicroBatch) -> set[LossKey]:
    return {(term.kind, term.head) for term in micro_batch.terms}


def _is_among(loss: LossKey, losses: set[LossKey]) -> bool:
    """Whether a loss of this kind is among them, on the same head, if both are known."""
    kind, head = loss
    return any(kind == other and (None in (head, at) or head == at) for other, at in losses)


def adds_again(batches: Sequence[MicroBatch]) -> bool:
    """Whether each backward after the first has all losses of the one before, and further ones.

    Of two backwards, the second must add losses of the kinds of the first: another loss may be
    added to one on purpose. Three that contain each other are a running total.
    """
    pairs = list(itertools.pairwise(batches))
    return bool(pairs) and all(
        _goes_on(before, after)
        and (len(pairs) > 1 or _kinds_added(after) == _kinds_added(batches[0]))
        for before, after in pairs
    )


def repeated_backwards(batches: Sequence[MicroBatch], half: bool) -> int:
    """How many start from the very loss of the one before, and add the same gradients to them.

    ``half``: the gradients are in half precision.
    """
    return sum(_add_the_same(*pair, half) for pair in _of_one_loss(batches))


def may_be_in_parts(batches: Sequence[MicroBatch], half: bool) -> bool:
    """Whether backwards start from one loss, and may add different gradients (`inputs=`)."""
    return not all(_add_the_same(*pair, half) for pair in _of_one_loss(batches))


def _of_one_loss(batches: Sequence[MicroBatch]) -> list[tuple[MicroBatch, MicroBatch]]:
    """Backwards in succession whose losses are the very same, and whose gradients are added up."""
    return [
        (before, after)
        for before, after in itertools.pairwise(batches)
        if not after.fresh
        and before.loss is not None  # else it is no scalar
        and before.loss == after.loss
        and 0 < len(terms := _reached(after)) == len(_reached(before))
        and all(term.again for term in terms)
    ]


def _add_the_same(before: MicroBatch, after: MicroBatch, half: bool) -> bool:
    """Whether the sampled gradients are known to have grown alike.

    Not if a norm is unknown or zero, and if the loop changed the gradients before one of them. Half
    precision rounds the sum to which the gradients are added.
    """
    first, second = number(before.sample_norm) or 0.0, number(after.sample_norm) or 0.0
    bound = SAMPLE_HALF if half else SAMPLE
    return bool(first and second) and math.isclose(first, second, rel_tol=bound)


def _goes_on(before: MicroBatch, after: MicroBatch) -> bool:
    """Whether all losses that the first reached are reached again, and others besides.

    A backward for chosen `inputs=` starts from losses without a way to them: it adds none again.
    """
    terms = _reached(after)
    again = sum(term.again for term in terms)
    return 0 < len(_reached(before)) == again < len(terms) and not after.fresh


def _kinds_added(micro_batch: MicroBatch) -> set[str]:
    return {term.kind for term in _reached(micro_batch) if not term.again}


def _reached(micro_batch: MicroBatch) -> list[Term]:
    return [term for term in micro_batch.terms if term.missing.get("weight") != UNREACHED]


def passes_of_one_loss(applied: IndexedMicroBatches) -> int:
    """The number of passes of one loss of the whole window, each by another part of it; else 1.

    Its features were cached, and each pass computes those of one micro-batch again, with a
    gradient: these gradients add up to that of the loss. Those of a layer beside them are
    the whole ones in each pass, so that no factor is right for all parameters.
    """
    return len(applied) if _has_one_loss(applied) and _beside_parts(applied) <= 1 else 1


def has_gradients_beside_parts(applied: IndexedMicroBatches) -> bool:
    """Whether each pass of one loss reaches a scalar beside the features, as a temperature."""
    return _beside_parts(applied) == 1 and passes_of_one_loss(applied) > 1


def has_layer_beside_parts(applied: IndexedMicroBatches) -> bool:
    """Whether each pass of one loss reaches a layer beside the features, with a whole gradient."""
    return _has_one_loss(applied) and _beside_parts(applied) > 1


def _has_one_loss(applied: IndexedMicroBatches) -> bool:
    """Whether all backwards are of one contrastive loss, whose targets are 0, 1, 2 and so on.

    Of other targets, each may have a separate loss of one value, as of K modalities in turn.
    """
    micro_batches = [m for _, m in applied]
    contrastive = all(m.consecutive_target for m in micro_batches)
    return contrastive and has_cached_parts(applied) and have_equal_losses(micro_batches)


def _beside_parts(applied: IndexedMicroBatches) -> int:
    """Elements of the largest parameter that gets a gradient by another way than its part."""
    return max((term.beside_parts for _, m in applied for term in m.terms), default=0)


def has_cached_parts(applied: IndexedMicroBatches) -> bool:
    """Whether each backward reaches parameters by another one of as many parts of its loss."""
    passes, indices = len(applied), list[int]()
    for _, micro_batch in applied:
        parts = {(term.part, term.parts) for term in micro_batch.terms}
        if passes == 1 or len(parts) != 1:
            return False
        index, count = parts.pop()
        if index is None or count != passes:
            return False
        indices.append(index)
    return sorted(indices) == [*range(passes)]


def may_have_parts_of_one_loss(applied: IndexedMicroBatches) -> bool:
    """Whether cached parts may belong to one loss, which dropout gives another value in each pass.

    Unless their targets differ: a memory of earlier features has such parts, too, and each
    micro-batch its separate loss. Targets that the graph does not show separate nothing.
    """
    micro_batches = [m for _, m in applied]
    targets = {number(m.fingerprint) for m in micro_batches}
    same = len(targets) == 1 or None in targets
    return has_cached_parts(applied) and (same or have_equal_losses(micro_batches))


def have_equal_losses(micro_batches: Sequence[MicroBatch]) -> bool:
    """Whether all have one loss, which is measured and not 0."""
    losses = [number(micro_batch.loss) for micro_batch in micro_batches]
    values = [loss for loss in losses if loss]
    bound = EQUAL_LOSS * abs(values[0]) if values else 0.0
    measured = 0 < len(values) == len(losses)
    return measured and max(values) - min(values) <= bound
