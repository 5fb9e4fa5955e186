"""What is read from FSDP2's parameter groups, and from those of other versions of PyTorch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gradledger.capture.open_records import CountedMicroBatch, OpenMicroBatch, OpenStep
from gradledger.observers import fsdp2
from gradledger.observers.fsdp2 import Reduction

SHARDS, COPIES = {"shard_mesh_size": 4}, {"replicate_mesh_size": 2}


def group(mesh: dict[str, int] = SHARDS, **more: Any) -> SimpleNamespace:
    """A parameter group as PyTorch 2.13 makes it; ``more`` is what the script set."""
    default = {"reduce_grads": True, "all_reduce_grads": True, "gradient_divide_factor": None}
    return SimpleNamespace(mesh_info=SimpleNamespace(**mesh), **{**default, **more})


@pytest.mark.parametrize(
    ("mesh", "flags", "reduced"),
    [
        (SHARDS, {}, True),
        (SHARDS, {"reduce_grads": False}, False),
        (SHARDS, {"all_reduce_grads": False}, True),  # there is no all-reduce
        (SHARDS | COPIES, {"all_reduce_grads": False}, False),
        (SHARDS | COPIES, {}, True),
    ],
)
def test_gradients_of_hybrid_shards_wait_for_the_all_reduce(
    mesh: dict[str, int], flags: dict[str, bool], reduced: bool
) -> None:
    assert fsdp2.reduces(group(mesh, **flags)) is reduced


class OfTheScript:
    """Code that the script gave to FSDP2."""


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (group(), Reduction(4, 4)),
        (group(SHARDS | COPIES), Reduction(8, 8)),
        (group(gradient_divide_factor=1), Reduction(4, 1)),
        (group(_reduce_scatter_comm=OfTheScript()), "set_custom_reduce_scatter"),
        (group(_all_reduce_hook=print), "set_all_reduce_hook"),
        (group(COPIES, gradient_divide_factor=2.0), "where each rank holds all parameters"),
        (group(reduce_scatter_reduce_op="PREMUL_SUM"), "set_reduce_scatter_divide_factor"),
    ],
)
def test_the_divisor_is_read_or_the_reason_why_not(
    parameters: SimpleNamespace, expected: Reduction | str
) -> None:
    reduction = fsdp2.reduction(parameters)
    if isinstance(expected, Reduction):
        assert reduction == expected
    else:
        assert expected in reduction.unknown


def step_with(*reductions: Reduction) -> OpenStep:
    """A step whose only micro-batch combined gradients so."""
    micro_batch = OpenMicroBatch(1, reductions=frozenset(reductions))
    step = OpenStep(0, 1, 1.0, [CountedMicroBatch(micro_batch)], [])
    fsdp2.describe(step)
    return step


@pytest.mark.parametrize(
    ("reductions", "divisors"),
    [
        ([], None),
        ([Reduction(4, 4)], None),
        ([Reduction(4, 1)], [1]),
        ([Reduction(4, 1), Reduction(4, 4)], [1, 4]),
        ([Reduction(4, 4), Reduction(2, 4)], None),  # experts over half of the ranks
    ],
)
def test_an_average_is_not_sent_and_experts_have_their_own_ranks(
    reductions: list[Reduction], divisors: list[float] | None
) -> None:
    assert step_with(*reductions).fields.get("divisors") == divisors


def test_an_unknown_divisor_leaves_the_reduction_open() -> None:
    step = step_with(Reduction(4, 4), Reduction(4, 0, "a reason"))
    assert step.missing == {"sync": "a reason", "divisors": "a reason"}
    assert "divisors" not in step.fields
