"""Recognises the short last batch of an epoch among windows of equal micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from gradledger_monitor.model.token_ledger import WeightedTokens
from gradledger_monitor.rules.state import declare

EQUAL = 3  # windows of equal micro-batches after which lengths that differed are history


class ShortBatch(NamedTuple):
    """The one micro-batch of a window with fewer tokens than all others of the run."""

    tokens: float
    usual: float  # tokens of every other micro-batch
    relative_weight: float  # of one of its tokens, to one of the others
    windows: int | None  # from the last short one to this; None if steps between are missing


class ShortBatches:
    """What the windows of an optimizer show of the ends of epochs."""

    state: ClassVar[Mapping[str, Any]] = declare(
        usual=float, tokens=float, last_step=int | None, needed=int
    )

    def __init__(self) -> None:
        self.usual = 0.0  # tokens of each micro-batch until now; 0 if they differ
        self.tokens = 0.0  # of the latest short batch; 0 before the first
        self.needed = 1  # equal windows until a batch is short
        self.last_step: int | None = 0  # the last one with a short batch, or before the first

    def see(self, step: int, lines: Sequence[WeightedTokens]) -> ShortBatch | None:
        """Take the next window in; the short batch that it holds, if there is one.

        The window must hold other micro-batches too, and earlier windows must have been equal: of
        texts, whose lengths differ anyway, the last one is not special. Each epoch ends with a
        batch of the same length: what is left of the data.
        """
        counts = {line.tokens for line in lines}
        if len(counts) == 1:
            (count,) = counts
            # only a window of one micro-batch may consist of a short batch alone
            self.usual = count if self.usual in (0.0, count) or len(lines) > 1 else self.usual
            self.needed = max(0, self.needed - 1)
            return None
        short = {line.micro_batch for line in lines if line.tokens < self.usual}
        others = {line.tokens for line in lines if line.micro_batch not in short}
        one_short = len(short) == 1 and others == {self.usual} and not self.needed
        earlier = self.tokens
        self.tokens = min(counts) if one_short else earlier
        if not one_short or earlier not in (0.0, self.tokens):
            self.usual, self.needed = 0.0, EQUAL
            return None
        windows = None if self.last_step is None else step - self.last_step
        self.last_step = step
        light = min(line.weight for line in lines if line.micro_batch not in short)
        heavy = max(line.weight for line in lines if line.micro_batch in short)
        return ShortBatch(self.tokens, self.usual, heavy / light, windows)

    def after_gap(self) -> None:
        """Steps are missing, of which one may have held a short batch."""
        self.last_step = None
