"""What is read from FSDP2's parameter groups, and from those of other versions of PyTorch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gradledger.capture.open_parts import OpenEvent
from gradledger.capture.open_records import CountedMicroBatch, OpenMicroBatch, OpenStep
from gradledger.capture.windows import OptimizerWindow
from gradledger.observers.ranks import fsdp2
from gradledger.observers.ranks.collectives import Collectives
from gradledger.observers.ranks.fsdp2 import Reduction

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


class Unreduced:
    """A parameter group that has not reduced the gradient of its only parameter."""

    def __init__(self, parameter: Any) -> None:
        self.mesh_info, self.reduce_grads = SimpleNamespace(**SHARDS), False
        unsharded = SimpleNamespace(grad=torch.ones(2))
        self.fsdp_params = [SimpleNamespace(sharded_param=parameter, _unsharded_param=unsharded)]


def stepped(held: fsdp2.HeldGradients, window: OptimizerWindow, *decisions: str) -> OpenStep:
    """The next window of an optimizer, of micro-batches with these decisions of FSDP2."""
    hidden = frozenset(map(id, window.parameters()))
    counted = [
        CountedMicroBatch(OpenMicroBatch(number, wrapper=each, hidden_parameters=hidden), True)
        for number, each in enumerate(decisions)
    ]
    held.check([window])
    step = OpenStep(0, 1, 1.0, counted, [OpenEvent("clip_norm", after=len(counted))])
    held.add_to(step, window)
    return step


@pytest.mark.parametrize(
    ("discarded", "windows", "expected"),
    [
        (False, 1, [True, None, False]),
        (False, 2, [True, None, False, None, False]),
        (True, 1, [True]),
        (False, 40, None),
    ],
)
def test_a_window_that_is_reduced_has_the_micro_batches_of_those_before_that_were_not(
    discarded: bool, windows: int, expected: list[bool] | None
) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter])
    window, held = OptimizerWindow(optimizer), fsdp2.HeldGradients()
    group = Unreduced(parameter)
    held.note(group)
    for _ in range(windows):
        step = stepped(held, window, "no_sync", "no_sync")
        assert len(step.micro_batches) == 2
        step.micro_batches[1].fresh = None
    if discarded:
        group.fsdp_params[0]._unsharded_param.grad = None
    step = stepped(held, window, "sync")
    if expected is None:
        assert "more than 64 micro-batches" in step.missing["sync"]
    else:
        assert [counted.fresh for counted in step.micro_batches] == expected
        assert [event.after for event in step.events] == [len(expected)]
    assert len(stepped(held, window, "sync").micro_batches) == 1  # they are added once


@pytest.mark.parametrize(
    ("reduced_before", "cleared", "fresh", "in_part"),
    [(False, False, False, False), (False, True, True, False), (True, True, False, True)],
)
def test_a_window_begins_afresh_once_what_was_not_reduced_is_cleared(
    reduced_before: bool, cleared: bool, fresh: bool, in_part: bool
) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter])
    window, held = OptimizerWindow(optimizer), fsdp2.HeldGradients()
    group = Unreduced(parameter)
    held.note(group)
    hidden = frozenset([id(parameter)])
    window.micro_batches = [CountedMicroBatch(OpenMicroBatch(1, hidden_parameters=hidden), True)]
    window.hidden_gradients = True
    parameter.grad = torch.ones(2) if reduced_before else None
    if cleared:
        group.fsdp_params[0]._unsharded_param.grad = None
    window.begin_backward()
    held.check([window])
    assert window.fresh is fresh
    step = OpenStep(0, 1, 1.0, window.micro_batches, [])
    held.add_to(step, window)
    assert (step.missing.get("sync") == fsdp2.CLEARED_IN_PART) is in_part


@pytest.mark.parametrize(
    ("of_it", "holds", "in_part"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_part_that_was_not_reduced_leaves_the_reduction_open(
    of_it: bool, holds: bool, in_part: bool
) -> None:
    """A part without gradients is frozen; one of another optimizer has its own windows."""
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = torch.optim.SGD(parameters[:2])
    window, held = OptimizerWindow(optimizer), fsdp2.HeldGradients()
    group = Unreduced(parameters[1 if of_it else 2])
    group.fsdp_params[0]._unsharded_param.grad = torch.ones(2) if holds else None
    held.note(group)
    step = OpenStep(0, 1, 1.0, [CountedMicroBatch(OpenMicroBatch(1, wrapper="sync"))], [])
    held.add_to(step, window)
    assert (step.missing.get("sync") == fsdp2.HELD_IN_PART) is in_part


@pytest.mark.parametrize("by_fsdp2", [False, True])
def test_windows_of_other_wrappers_that_are_not_synchronised_end_with_their_step(
    by_fsdp2: bool,
) -> None:
    """Under DDP the gradients are in ``.grad``; FSDP1 hides them, and FSDP2 may train beside it."""
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter])
    window, held = OptimizerWindow(optimizer), fsdp2.HeldGradients()
    group = Unreduced(torch.nn.Parameter(torch.ones(2)))
    if by_fsdp2:
        held.note(group)
    assert len(stepped(held, window, "no_sync").micro_batches) == 1
    assert len(stepped(held, window, "sync").micro_batches) == 1
    hidden = frozenset([id(parameter)])
    window.micro_batches = [CountedMicroBatch(OpenMicroBatch(1, hidden_parameters=hidden), True)]
    window.hidden_gradients = True
    window.begin_backward()
    held.check([window])
    assert window.fresh is False


@pytest.mark.parametrize(("frozen", "expected"), [(False, "sync"), (True, "no_sync")])
def test_a_frozen_group_does_not_decide_whether_a_backward_is_synchronised(
    frozen: bool, expected: str
) -> None:
    """A generator trains through a frozen discriminator, whose flag is left as it was."""
    micro_batch = OpenMicroBatch(1)
    backwards: Any = SimpleNamespace(current=lambda: micro_batch)
    observer = Collectives(backwards)
    for reduces, trains in ((True, not frozen), (False, True)):
        group: Any = Unreduced(torch.nn.Parameter(torch.ones(2), requires_grad=trains))
        group.reduce_grads = reduces
        observer._note_fsdp2_decision(group)
    assert micro_batch.wrapper == expected


def test_gradients_outside_grad_are_not_taken_for_absent_ones() -> None:
    """A parameter beside FSDP gets its gradient in ``.grad``; those of FSDP are elsewhere."""
    managed = [torch.nn.Parameter(torch.ones(2)) for _ in range(60)]
    beside = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([*managed[:25], beside, *managed[25:]], lr=0.1)
    window = OptimizerWindow(optimizer)  # which holds it weakly
    window.begin_backward()
    probed = list(map(id, window.probed_parameters))
    assert id(beside) not in probed
    beside.grad = torch.ones(2)
    assert window.end_backward(hidden={id(parameter) for parameter in managed})
    assert list(map(id, window.probed_parameters)) == probed
