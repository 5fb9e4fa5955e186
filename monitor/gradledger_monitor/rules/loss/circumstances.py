"""What changed in the window of an alarm: the micro-batch that stands out, and the settings.

An alarm about a symptom (a spike, a divergence) is easier to act on with what changed when it
began: a learning rate that jumped, a new loss scale, a smaller batch, one micro-batch whose loss is
far above the others. This module states such facts. It does not state that they are the cause.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

from gradledger_monitor.ingest.schema import MicroBatch
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import Window, counted

BEFORE = 3  # windows before the alarm: a loss shows a change of the learning rate one step later
CHANGED = 1.5  # factor from which a setting has changed: schedules move by less in such a time
OUTLIER = 5.0  # times the median loss of the other micro-batches: the one that stands out


class Circumstances(NamedTuple):
    """What changed at a step: sentences, and the numbers that they are based on."""

    text: str  # "", or sentences with a space before them
    evidence: dict[str, Any]


NONE_KNOWN = Circumstances("", {})


def at(window: Window) -> Circumstances:
    """What changed up to a window, against one shortly before it, and among its micro-batches."""
    sentences: list[str] = []
    evidence: dict[str, Any] = {}
    for name, step, before, now in _changes(window):
        sentences.append(
            f"the {name} went from {significant(before)} (step {step:,}) to {significant(now)}"
        )
        evidence[name.replace(" ", "_")] = [before, now]
    outlier = _outlier(window.facts)
    if outlier is not None:
        sentences.append(outlier.sentence())
        evidence["micro_batch"] = outlier.evidence()
    if not sentences:
        return NONE_KNOWN
    return Circumstances(f" At step {window.facts.step:,}, {'; '.join(sentences)}.", evidence)


def _changes(window: Window) -> Iterator[tuple[str, int, float, float]]:
    """Settings that differ from those of a window shortly before: name, its step, its value, the
    value now."""
    if not window.past:
        return
    before, facts = window.past[max(-BEFORE, -len(window.past))], window.facts
    pairs = (
        ("learning rate", before.lr, number(facts.record.lr)),
        ("loss scale", before.scale, facts.scale),
        ("batch in samples", before.samples, facts.samples),
    )
    for name, was, now in pairs:
        if was and now and not 1 / CHANGED < now / was < CHANGED:
            yield name, before.step, was, now


class _Outlier(NamedTuple):
    """The micro-batch whose loss is far above those of the others of its window."""

    rank: int
    ranks: int
    position: int  # among those of its rank, from 0
    of: int  # micro-batches of its rank
    loss: float
    usual: float
    tokens: int | None

    def sentence(self) -> str:
        """Where it is, its loss and its tokens."""
        rank = f" of rank {self.rank}" if self.ranks > 1 else ""
        tokens = "" if self.tokens is None else f" over {counted(self.tokens, 'token')}"
        return (
            f"micro-batch {self.position + 1} of {self.of}{rank} has a loss of "
            f"{significant(self.loss)}{tokens}, where the others have {significant(self.usual)}"
        )

    def evidence(self) -> dict[str, Any]:
        """The same as data."""
        return {
            "rank": self.rank,
            "index": self.position,
            "loss": self.loss if math.isfinite(self.loss) else str(self.loss),
            "usual_loss": self.usual,
            "tokens": self.tokens,
        }


def _outlier(facts: StepFacts) -> _Outlier | None:
    """The micro-batch with the largest loss, if it is not finite or far above the median of the
    others."""
    losses = [
        (_size(loss), loss, rank, index, micro_batch)
        for rank, applied in facts.applied_by_rank.items()
        for index, micro_batch in applied
        if (loss := _loss_of(micro_batch)) is not None
    ]
    if len(losses) < 2:
        return None
    size, loss, rank, index, micro_batch = max(losses, key=lambda each: each[0])
    others = [each for each in losses if each[2:4] != (rank, index)]
    usual = median(each[0] for each in others)
    if not math.isfinite(usual) or size <= OUTLIER * usual:
        return None
    tokens = [term.tokens for term in micro_batch.terms]
    counts = [count for count in tokens if count is not None]
    return _Outlier(
        rank,
        len(facts.records),
        index,
        len(facts.applied_by_rank[rank]),
        loss,
        median(each[1] for each in others),
        sum(counts) if counts and len(counts) == len(tokens) else None,
    )


def _size(loss: float) -> float:
    return math.inf if math.isnan(loss) else abs(loss)


def _loss_of(micro_batch: MicroBatch) -> float | None:
    """The loss of one micro-batch, without the loss scale."""
    loss = number(micro_batch.loss)
    if loss is None or micro_batch.relayed or "scale" in micro_batch.missing:
        return None
    return loss / (number(micro_batch.scale) or 1.0)
