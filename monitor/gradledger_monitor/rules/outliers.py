"""The micro-batch of a window that stands out: by its loss, or by its share of the gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from gradledger_monitor.ingest.schema import MicroBatch
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.balance.patterns import Closed
from gradledger_monitor.rules.number_text import counted, percent, significant
from gradledger_monitor.rules.objective_names import ELEMENT, element_of

TIMES = 5.0  # times the median loss of the other micro-batches, or of the windows before
LARGE_SHARE = 0.8  # of the squared gradient norm, of one of at least ``FEWEST`` micro-batches
FEWEST = 4
_NOT_FINITE = {"nan": "NaN", "inf": "infinity", "-inf": "minus infinity"}
BEFORE = 5  # windows that a single micro-batch is compared with
TIMES_BEFORE = 10.0  # times the largest of their losses: a loss that grows by itself is below


class _MicroBatch(NamedTuple):
    rank: int
    position: int
    of: int  # micro-batches of its rank
    loss: float | None  # without the loss scale
    gradient: float | None  # norm of what it added to the sampled gradients, without the scale
    record: MicroBatch

    @property
    def size(self) -> float:
        """The size of the loss; of one that is not a number, infinite."""
        loss = self.loss
        return 0.0 if loss is None else math.inf if math.isnan(loss) else abs(loss)


def outlier_of(facts: StepFacts, past: Sequence[Closed]) -> dict[str, Any] | None:
    """The micro-batch that stands out, as evidence; None if none does."""
    all_of_window = _micro_batches(facts)
    shares = _shares(all_of_window)
    losses = [each for each in all_of_window if each.loss is not None]
    if len(losses) == 1:
        return _against_windows_before(facts, losses[0], past)
    if len(losses) < 2:
        return None
    largest = max(losses, key=lambda each: each.size)
    others = [each for each in losses if each is not largest]
    usual = median(each.size for each in others)
    if math.isfinite(usual) and largest.size > TIMES * usual:
        middle = median(each.loss for each in others if each.loss is not None)
        return _evidence(facts, largest, middle, shares.get(_key(largest)), "others")
    if len(all_of_window) < FEWEST or not shares:
        return None
    key, share = max(shares.items(), key=lambda pair: pair[1])
    if share < LARGE_SHARE:
        return None
    heaviest = next(each for each in all_of_window if _key(each) == key)
    middle = median(each.loss for each in losses if each.loss is not None)
    return _evidence(facts, heaviest, middle, share, "others")


def window_of(facts: StepFacts, past: Sequence[Closed]) -> dict[str, Any] | None:
    """A window whose micro-batches are alike, and far above all of the windows before."""
    micro_batches, reported = _micro_batches(facts), facts.loss_reported
    sizes = [each.size for each in micro_batches if each.loss is not None]
    if len(sizes) < max(2, len(micro_batches)) or reported is None:
        return None
    middle = median(sizes)
    if not all(size <= TIMES * middle and middle <= TIMES * size for size in sizes):
        return None
    usual = usual_before(abs(reported), past)
    if usual is None:
        return None
    loss = reported if math.isfinite(reported) else str(reported)
    return {"micro_batches": len(sizes), "loss": loss, "usual": usual}


def sentence_of_window(window: Mapping[str, Any]) -> str:
    """Its loss, and that all of its micro-batches have one of about that size."""
    loss = window["loss"]
    return (
        f"the loss of the window is {_NOT_FINITE.get(loss) or significant(loss)}, where those "
        f"before had {significant(window['usual'])}, and none of its "
        f"{window['micro_batches']:,} micro-batches stands out from the others"
    )


def sentence(outlier: Mapping[str, Any]) -> str:
    """Where it is, its loss, its tokens, and its share of the gradient."""
    rank = "" if outlier["rank"] is None else f" of rank {outlier['rank']}"
    count, unit = outlier["tokens"], outlier.get("unit", ELEMENT)
    tokens = "" if count is None else f" over {counted(count, unit)}"
    position = f"micro-batch {outlier['index'] + 1} of {outlier['of']}{rank}"
    if outlier["of"] == 1:
        position = f"the batch{rank}" if rank else "the batch"
    usual = (
        f"where the others have {significant(outlier['usual'])}"
        if outlier["compared"] == "others"
        else f"where those before had {significant(outlier['usual'])}"
    )
    share = outlier["share"]
    of_gradient = ""
    if share is not None:
        of_gradient = f", and carries {percent(share)} of the squared norm of the gradient"
    loss = outlier["loss"]
    text = _NOT_FINITE.get(loss) or ("no loss" if loss is None else significant(loss))
    return f"{position} has a loss of {text}{tokens}, {usual}{of_gradient}"


def _micro_batches(facts: StepFacts) -> list[_MicroBatch]:
    return [
        _MicroBatch(rank, index, len(applied), _loss_of(m), _gradient_of(m), m)
        for rank, applied in facts.applied_by_rank.items()
        for index, m in applied
    ]


def _key(micro_batch: _MicroBatch) -> tuple[int, int]:
    return micro_batch.rank, micro_batch.position


def _shares(micro_batches: Sequence[_MicroBatch]) -> dict[tuple[int, int], float]:
    """The share of each in the sum of squared norms; empty if one was not measured."""
    norms = [(_key(m), m.gradient) for m in micro_batches if m.gradient is not None]
    whole = math.hypot(*(norm for _, norm in norms))
    if len(norms) < len(micro_batches) or len(norms) < 2 or not 0 < whole < math.inf:
        return {}
    return {key: (norm / whole) ** 2 for key, norm in norms}


def _against_windows_before(
    facts: StepFacts, only: _MicroBatch, past: Sequence[Closed]
) -> dict[str, Any] | None:
    usual = usual_before(only.size, past)
    return None if usual is None else _evidence(facts, only, usual, None, "before")


def usual_before(size: float, past: Sequence[Closed]) -> float | None:
    """The usual loss of the windows before, if one of this size is far above all of them."""
    before = [c.loss for c in past if c.loss is not None and math.isfinite(c.loss)]
    latest = [abs(loss) for loss in before[-BEFORE:]]
    if len(latest) < BEFORE or size <= TIMES_BEFORE * max(latest):
        return None
    usual = median(before)
    # else the loss had left its range before this window, as it does when it diverges
    return usual if max(latest) <= TIMES_BEFORE * abs(usual) else None


def _evidence(
    facts: StepFacts, chosen: _MicroBatch, usual: float, share: float | None, compared: str
) -> dict[str, Any]:
    loss = chosen.loss
    return {
        "rank": chosen.rank if len(facts.records) > 1 else None,
        "index": chosen.position,
        "of": chosen.of,
        "loss": str(loss) if loss is not None and not math.isfinite(loss) else loss,
        "usual": usual,
        "tokens": _tokens_of(chosen.record),
        "unit": element_of([chosen.record]),
        "share": share,
        "fingerprint": number(chosen.record.fingerprint),
        "compared": compared,
    }


def _tokens_of(micro_batch: MicroBatch) -> int | None:
    tokens = [term.tokens for term in micro_batch.terms]
    counts = [count for count in tokens if count is not None]
    return sum(counts) if counts and len(counts) == len(tokens) else None


def _loss_of(micro_batch: MicroBatch) -> float | None:
    """The loss of one micro-batch, without the loss scale."""
    loss = number(micro_batch.loss)
    if loss is None or micro_batch.relayed or "scale" in micro_batch.missing:
        return None
    return loss / (number(micro_batch.scale) or 1.0)


def _gradient_of(micro_batch: MicroBatch) -> float | None:
    norm = number(micro_batch.sample_norm)
    return None if norm is None else norm / (number(micro_batch.scale) or 1.0)
