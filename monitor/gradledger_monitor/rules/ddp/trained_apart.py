"""Why it is not known whether ranks that combine no gradients are meant to train one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.model import tolerances
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.replicas import Replicas, differ_by
from gradledger_monitor.rules.state import declare

ALONE = (
    "the ranks combine no gradients, and parameters that were equal on all of them differ now: "
    "whether each rank is meant to train its own model is not known"
)

ALONE_AND_COMMUNICATES = (
    "the ranks communicate before the step, but each steps on the gradients that it computed, and "
    "parameters that were equal on all of them differ now: whether each rank is meant to train its "
    "own model, or the loop combined copies of the gradients, is not known"
)

CHANGED = (
    "the ranks combine no gradients, and something besides the optimizer changes their parameters, "
    "which stay different on each rank: whether it limits them, or mixes those of several ranks, "
    "as elastic and gossip averaging do, is not known"
)
NO_LONGER = (
    "the ranks combined their gradients in earlier steps, and do not any more; parameters that "
    "were equal on all of them differ now: whether they are averaged later, as in local SGD, is "
    "not known"
)
OF_ALL_TOKENS = (
    "each rank divides its loss by the tokens of all ranks, or by their mean, and steps on its own "
    "gradients; parameters that were equal on all of them differ now: whether the loop leaves out "
    "the all-reduce of the gradients, or the ranks average their models later, is not known"
)
OF_PARTS = (
    "the optimizers of the ranks hold different parameters, and the ranks combine no gradients: "
    "whether the parameters of one rank are meant to be trained on the data of that rank alone is "
    "not known"
)
SHARED_OUT = (
    "the optimizers of the ranks hold different parameters, as in ZeRO: whether each rank receives "
    "what the others have updated is not known"
)


class PeersApart:
    """Tensor-parallel ranks whose copies of a parameter do not stay equal.

    They were equal at first, and not zero, from which parts start, too. Parts that start from ones
    or are drawn from one seed are equal, too. Vectors are parts where a matrix is another one on
    each rank.
    """

    state: ClassVar[Mapping[str, Any]] = declare(copies=Replicas)

    def __init__(self) -> None:
        self.copies = Replicas()

    def add(self, facts: StepFacts) -> dict[int, list[int]]:
        """Compare the ranks in one step; the parameters that differ now, with their shapes."""
        copies, peers = self.copies, facts.run.tensor_peers
        if len(peers) < 2:
            return {}
        copies.compare(peers)
        if copies.equal_again or not copies.drifted or copies.apart_by_rounding:
            return {}
        in_parts = any(copies.differed_at_first[i] for i, s in copies.apart.items() if len(s) > 1)
        return {
            index: shape
            for index, shape in copies.drifted.items()
            if copies.at_first[index] and (len(shape) > 1 or not in_parts)
        }


class PartsApart:
    """Ranks that hold one model in parts, by hand, whose copies of the rest do not stay equal.

    They have one loss of the same data at first, bit by bit, although some of their parameters
    differ: no rank computes it from its own parameters alone. These must have gradients: what is
    multiplied by zeros at first, as in LoRA, does not reach the loss. A matrix that is equal on all
    of them at first, and not zero, is no part. The ranks have other losses of the same data once
    the copies differ.
    """

    state: ClassVar[Mapping[str, Any]] = declare(matrices=list[int], windows=int)

    def __init__(self) -> None:
        self.matrices: list[int] = []  # equal at first, where the ranks hold one model in parts
        self.windows = 0  # in a row, in which the ranks have other losses of the same data

    def add(self, facts: StepFacts, replicas: Replicas) -> None:
        """The first window of a run, or a later one; ``replicas`` has its parameters."""
        rows = list((facts.run.parts or facts.records).values())
        if facts.step > 1 and not self.matrices:
            return
        same = facts.complete and len(rows) > 1 and _have_same_data(rows)
        losses = [[number(m.loss) for m in row.micro_batches] for row in rows] if same else []
        columns = [[v for v in column if v is not None] for column in zip(*losses, strict=False)]
        if not columns or any(len(column) < len(rows) for column in columns):
            self.windows = 0
        elif facts.step == 1:
            in_parts = any(all(_reaches_loss(row, i) for row in rows) for i in replicas.apart)
            alike = all(len(set(column)) == 1 for column in columns)
            self.matrices = _equal_matrices(rows, replicas) if in_parts and alike else []
        else:
            differ = any(differ_by(column, tolerances.NORM) for column in columns)
            self.windows = self.windows + 1 if differ else 0

    def differ(self, replicas: Replicas) -> list[int]:
        """The matrices of which the ranks hold copies that differ; none unless losses do, too."""
        return [i for i in self.matrices if self.windows > 1 and i in replicas.apart]


def _have_same_data(rows: Sequence[StepRecord]) -> bool:
    prints = [tuple(number(m.fingerprint) for m in row.micro_batches) for row in rows]
    constant = any(m.constant_target for row in rows for m in row.micro_batches)
    return not constant and len(set(prints)) == 1 and None not in prints[0]


def _reaches_loss(row: StepRecord, index: int) -> bool:
    """Whether another value of this parameter is another loss, if the rank computes it alone.

    A loss in half precision may stay the same, and a gradient may be rounding errors alone.
    """
    if row.replica is None or row.layers is None or row.half_precision:
        return False
    name = dict(zip(row.replica.indices, row.replica.names, strict=False)).get(index, "")
    by_name = zip(row.layers.names, map(number, row.layers.gradient), strict=False)
    gradients = {layer: gradient for layer, gradient in by_name if gradient}
    return gradients.get(name, 0.0) > tolerances.NORM * max(gradients.values(), default=0.0)


def _equal_matrices(rows: Sequence[StepRecord], replicas: Replicas) -> list[int]:
    own = rows[0].replica
    if own is None:
        return []
    columns = zip(own.indices, own.shapes, own.fingerprints, strict=False)
    matrices = [index for index, shape, value in columns if len(shape) > 1 and number(value)]
    return [index for index in matrices if replicas.differed_at_first.get(index) is False]
