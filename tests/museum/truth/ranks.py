"""Against what ranks should have in common, what they should not, and the order of their data."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from museum.labels import Label
from museum.truth.seen import Step


def tell_replicas(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """What each step started from and applied, in one vector."""
    return {"steps": [_flat(step) for step in steps]}


def _flat(step: Step) -> Tensor:
    gradients = [g.flatten() for g in step.gradients if g is not None]
    return torch.cat([*gradients, *(p.flatten() for p in step.parameters)])


def fault_of_replicas(ranks: list[dict[str, Any]]) -> float:
    """The largest relative difference from the first rank at one step, or in their count."""
    steps = list(zip(*(rank["steps"] for rank in ranks), strict=False))
    apart = [float((a - b).norm() / a.norm()) for a, *others in steps for b in others]
    counts = [len(rank["steps"]) for rank in ranks]
    return max(*apart, max(counts) - min(counts))


def tell_norms(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """``norms``, with which the program clipped."""
    return {"norms": names["norms"]}


def fault_of_norms(ranks: list[dict[str, Any]]) -> float:
    """The largest relative difference between the ranks: one gradient has one norm."""
    steps = zip(*(rank["norms"] for rank in ranks), strict=True)
    return max((max(norms) - min(norms)) / max(norms) for norms in steps)


def tell_parameters(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """What each step of the first optimizer started from."""
    own = [step for step in steps if step.optimizer is steps[0].optimizer]
    return {"starts": [torch.cat([p.flatten() for p in step.parameters]) for step in own]}


def fault_of_averaging(ranks: list[dict[str, Any]]) -> float:
    """How different the models of two ranks are where they are most alike, in the second half."""
    starts = list(zip(*(rank["starts"] for rank in ranks), strict=True))
    late = starts[len(starts) // 2 :]
    return min(max(float((a - b).norm() / a.norm()) for b in others) for a, *others in late)


def tell_exchanged(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Reads ``exchanged``: pairs of what the rank gave to a combination, and what it got."""
    return {"exchanged": names["exchanged"]}


def fault_of_average(ranks: list[dict[str, Any]]) -> float:
    """How far what ranks got is from the average of what all ranks gave."""
    faults = []
    for pairs in zip(*(rank["exchanged"] for rank in ranks), strict=True):
        average = sum(given for given, _ in pairs) / len(pairs)
        faults += [float((got - average).norm() / average.norm()) for _, got in pairs]
    return max(faults)


def tell_all_reduces(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """All-reduces of the gradients that each step applied, for each wrapper."""
    tape = names["tape"]
    return {"all_reduces": [count / tape.wrappers for count in tape.all_reduces[: len(steps)]]}


def fault_of_all_reduces(ranks: list[dict[str, Any]]) -> float:
    """How many all-reduces more or less than one a step had, at worst."""
    return max(abs(count - 1) for rank in ranks for count in rank["all_reduces"])


def tell_targets(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Reads ``loader`` where there is one: its length is that of an epoch."""
    loader = names.get("loader")
    return {"targets": names["tape"].targets, "epoch": None if loader is None else len(loader)}


def fault_of_duplicates(ranks: list[dict[str, Any]]) -> float:
    """The share of micro-batches whose targets are the same on both ranks."""
    first, second = (rank["targets"] for rank in ranks)
    return sum(a == b for a, b in zip(first, second, strict=True)) / len(first)


def fault_of_order(ranks: list[dict[str, Any]]) -> float:
    """The share of epochs in the order of the epoch before."""
    targets, length = ranks[0]["targets"], ranks[0]["epoch"]
    epochs = [targets[i : i + length] for i in range(0, len(targets), length)]
    again = [a == b for a, b in itertools.pairwise(epochs)]
    return sum(again) / len(again)
