"""All-reduces that the script calls: they are counted, and behave as without the hooks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradledger.capture.backwards import Backwards
from gradledger.capture.open_records import OpenMicroBatch
from gradledger.capture.windows import OptimizerWindow
from gradledger.observers.ranks import running_works
from gradledger.observers.ranks.collectives import Collectives
from gradledger.observers.ranks.local_gradients import ELSEWHERE, divides_by
from helpers.pytorch import older_than
from helpers.training import recording


@pytest.fixture
def observer(tmp_path: Path) -> Iterator[Collectives]:
    """Installed, in a process group of one rank."""
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    collectives = Collectives(Backwards())
    collectives.install()
    yield collectives
    collectives.uninstall()
    dist.destroy_process_group()


def of_gloo(kind: Any) -> Any:
    """A group of this class, over the backend of the default group."""
    cpu = torch.device("cpu")
    group: Any = kind(0, 1)
    default: Any = dist.group.WORLD
    backend = default._get_backend(cpu)
    group._register_backend(cpu, dist.ProcessGroup.BackendType.GLOO, backend)
    return group


class Inherits(dist.ProcessGroup):
    """A group of the script, which inherits its collectives."""


class Calls(dist.ProcessGroup):
    """A group of the script, whose collectives call those of the base class."""

    calls = 0

    def allreduce(self, *args: Any) -> Any:
        """Count the calls."""
        self.calls += 1
        assert self.calls < 5
        return super().allreduce(*args)

    def allreduce_coalesced(self, *args: Any) -> Any:
        """Count the calls."""
        self.calls += 1
        assert self.calls < 5
        return super().allreduce_coalesced(*args)


@pytest.mark.parametrize("kind", [Inherits, Calls])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("allreduce", dist.AllreduceOptions),
        ("allreduce_coalesced", dist.AllreduceCoalescedOptions),
    ],
)
def test_a_subclass_of_process_group_is_called_once(
    observer: Collectives, kind: type[dist.ProcessGroup], name: str, options: Any
) -> None:
    """Its methods are virtual: the base class calls those of the subclass."""
    group = of_gloo(kind)
    tensor = torch.full((3,), 2.0)
    getattr(group, name)([tensor], options()).wait()
    assert tensor.tolist() == [2.0] * 3
    assert getattr(group, "calls", 1) == 1
    assert observer._thread.reduced == 3


@pytest.mark.parametrize("kind", [Inherits, Calls])
def test_also_with_hooks_below_that_are_off(
    observer: Collectives, kind: type[dist.ProcessGroup]
) -> None:
    """Those of another session: they stay, because these were installed above them."""
    above = Collectives(Backwards())
    above.install()
    observer.uninstall()
    group, tensor = of_gloo(kind), torch.full((3,), 2.0)
    group.allreduce([tensor], dist.AllreduceOptions()).wait()
    assert getattr(group, "calls", 1) == 1
    above.uninstall()
    group.allreduce([tensor], dist.AllreduceOptions()).wait()
    assert tensor.tolist() == [2.0] * 3


def test_calls_with_wrong_arguments_raise_what_pytorch_raises(observer: Collectives) -> None:
    group: Any = dist.group.WORLD
    for wrong in ("text", 3, None, [3]):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            group.allreduce(wrong)
    assert observer._thread.reduced == 0


def test_all_ways_to_call_it_are_counted(observer: Collectives) -> None:
    group: Any = dist.group.WORLD
    ones = torch.ones(2, 3)
    dist.all_reduce(ones)
    work = dist.all_reduce(ones, dist.ReduceOp.MAX, async_op=True)
    assert work is not None
    work.wait()
    group.allreduce(ones).wait()
    group.allreduce(tensors=[ones]).wait()  # by name: not counted
    observer._works.inside = OpenMicroBatch(1, complete=False)
    limit = {} if older_than("2.10") else {"timeout": timedelta(minutes=1)}
    works = [group.allreduce([ones], dist.ReduceOp.SUM, *limit.values())]
    works += [group.allreduce([ones], op=dist.ReduceOp.SUM, **limit)]
    assert len(observer._works._sampled) == len(works)
    for each in works:
        each.wait()
    dist.barrier()
    dist.all_gather_object([None], {"loss": 1.0})
    assert observer._thread.reduced == 30
    assert ones.tolist() == [[1.0] * 3] * 2


def test_an_average_is_read_from_each_way_to_state_the_operation() -> None:
    group, options = SimpleNamespace(size=lambda: 4), dist.AllreduceOptions()
    assert running_works.divisor_of(group, options, torch.ones(3), timedelta(minutes=1)) == 1
    average: Any = dist.ReduceOp.AVG
    options.reduceOp, of_operation = average, dist.ReduceOp(average)
    for stated in (options, dist.ReduceOp.AVG, of_operation):
        assert running_works.divisor_of(group, stated, None) == 4


@pytest.mark.parametrize("use", ["", "wait", "is_completed", "get_future", "synchronize"])
def test_all_reduces_of_gradients_that_nothing_waits_for_are_a_fact_of_the_step(
    observer: Collectives, use: str
) -> None:
    parameters = [nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(2))]
    flat = torch.ones(8)
    parameters[0].grad, parameters[1].grad = flat[:6], flat[6:]  # views of one buffer
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    window = OptimizerWindow(optimizer)
    works, reduced = observer._works, 8
    work: Any = dist.all_reduce(flat, async_op=True)
    dist.all_reduce(torch.ones(5))  # it waits by itself
    log: Any = dist.all_reduce(torch.ones(3), async_op=True)  # is no gradient
    if use:
        getattr(work, use)()
    unwaited = works.describe(window, reduced).get("unwaited_share")
    assert unwaited == (None if use else 1.0)
    work.wait()
    log.wait()
    assert "unwaited_share" not in works.describe(window, reduced)


def test_what_hooks_start_in_a_backward_runs_until_it_is_waited_for(observer: Collectives) -> None:
    parameter, works = nn.Parameter(torch.ones(3)), []
    optimizer = torch.optim.SGD([parameter], lr=0.1)

    def start(reduced: torch.Tensor) -> None:
        works.append(dist.all_reduce(reduced.grad, async_op=True))

    parameter.register_post_accumulate_grad_hook(start)
    micro_batch = OpenMicroBatch(1)
    observer.backward_begins(micro_batch, ())
    parameter.sum().backward()
    observer.backward_ends(micro_batch, [])
    window = OptimizerWindow(optimizer)
    assert observer._works.describe(window, 0) == {"unwaited_share": 1.0}
    works[0].wait()
    assert observer._works.describe(window, 0) == {}


def test_a_work_that_the_script_drops_is_not_waited_for(observer: Collectives) -> None:
    parameters = [nn.Parameter(torch.zeros(3)) for _ in range(4)]
    for parameter in parameters:
        parameter.grad = torch.ones(3)
        dist.all_reduce(parameter.grad, async_op=True)  # the ids of these works are used again
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    window = OptimizerWindow(optimizer)
    assert observer._works.describe(window, 12)["unwaited_share"] == 1.0
    dist.barrier()  # waits for all that were started before it
    assert observer._works.describe(window, 0) == {}


def test_only_the_model_that_is_in_join_divides_by_the_ranks_that_have_data(
    observer: Collectives,
) -> None:
    own, other = nn.Linear(3, 2), nn.Linear(3, 2)
    joined = DistributedDataParallel(own)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (own, other)]
    windows = [OptimizerWindow(optimizer) for optimizer in optimizers]
    assert divides_by(joined, windows[0]) is None
    with joined.join(divide_by_initial_world_size=False):
        assert [divides_by(joined, window) for window in windows] == ["active", None]


@pytest.mark.parametrize(("apart", "reason"), [(True, ELSEWHERE), (False, None)])
def test_a_hook_over_another_group_may_exchange_gradients_with_other_processes(
    tmp_path: Path, apart: bool, reason: str | None
) -> None:
    def hook(_: Any, bucket: Any) -> Any:
        ready: Any = torch.futures.Future()
        ready.set_result(bucket.buffer())
        return ready

    hook.__annotations__ = {}  # PyTorch compares them with types

    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        group = dist.new_group([0]) if apart else None
        with recording() as recorded:
            model = DistributedDataParallel(nn.Linear(3, 2), process_group=group)
            model.register_comm_hook(None, hook)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                logits = model(torch.ones(4, 3))
                nn.functional.cross_entropy(logits, torch.tensor([0, 1, 1, 0])).backward()
                optimizer.step()
                optimizer.zero_grad()
        assert [facts.unmeasured for facts in recorded.facts()] == [reason] * 2
    finally:
        dist.destroy_process_group()


class _Copied(torch.autograd.Function):
    """What column parallelism does: its backward adds up the gradients of the ranks."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        gradient = gradients[0].clone()
        dist.all_reduce(gradient)
        return gradient * 3  # after the wait


def test_all_reduces_inside_backward_are_sampled_before_and_after(observer: Collectives) -> None:
    parameter, copied = nn.Parameter(torch.randn(8)), getattr(_Copied, "apply")  # noqa: B009
    optimizer = torch.optim.SGD([parameter], 0.1)
    window = OptimizerWindow(optimizer)
    # One rank: the sum is the value. Of a window, the first is sampled; what the function does to
    # the sum is known once one has been.
    for sums, begins in (([1.0], False), ([], True), ([3.0], False)):
        micro_batch = OpenMicroBatch(1, marked_windows=[window], complete=False)
        dist.all_reduce(torch.ones(8))  # outside
        observer.backward_begins(micro_batch, ())
        (copied(parameter) * torch.arange(1.0, 9.0)).sum().backward()
        observer.backward_ends(micro_batch, [])
        dist.all_reduce(torch.ones(8))
        assert micro_batch.resolve().sums == sums
        assert micro_batch.collectives == 1
        window.add_micro_batch(micro_batch)
        if begins:
            window = OptimizerWindow(optimizer)


def test_an_all_to_all_is_of_the_backward_that_it_runs_in(observer: Collectives) -> None:
    """A later part of the process may have no experts."""
    exchanges = []
    for sends in (True, False):
        parameter = nn.Parameter(torch.ones(4))
        if sends:
            parameter.register_hook(
                lambda g: dist.all_to_all_single(torch.empty(4), g.contiguous())
            )
        micro_batch = observer._backwards.begin(has_grad_tensors=False)
        parameter.sum().backward()
        observer._backwards.leave()
        dist.all_to_all_single(torch.empty(4), torch.ones(4))  # outside
        exchanges.append(micro_batch.exchanges)
    assert exchanges == [True, False]


class _Mean(_Copied):
    """A mean over the ranks: its backward divides, too."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        mean = values.clone()
        dist.all_reduce(mean)
        return mean / dist.get_world_size()


@pytest.mark.parametrize(("function", "both"), [(_Copied, False), (_Mean, True)])
def test_a_function_that_combines_ranks_in_its_forward_is_known(
    observer: Collectives, function: Any, both: bool
) -> None:
    parameter = nn.Parameter(torch.randn(8))
    window = OptimizerWindow(torch.optim.SGD([parameter], 0.1))
    micro_batch = OpenMicroBatch(1, marked_windows=[window], complete=False)
    loss = (function.apply(parameter) * torch.arange(1.0, 9.0)).sum()
    observer.backward_begins(micro_batch, ())
    loss.backward()
    assert [summed.both_ways for summed in micro_batch.sums] == [both]


def test_an_all_reduce_that_ends_after_its_backward_is_not_sampled(
    observer: Collectives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_works, "MOST_SUMS", 2)
    parameter = nn.Parameter(torch.ones(8))
    window = OptimizerWindow(torch.optim.SGD([parameter], 0.1))
    micro_batch = OpenMicroBatch(1, marked_windows=[window], complete=False)
    observer.backward_begins(micro_batch, ())
    for _ in range(3):
        dist.all_reduce(torch.ones(8))
    late, values = torch.ones(8), torch.ones(8)
    assert len(micro_batch.sums) == 2
    micro_batch.sums.clear()
    work = dist.all_reduce(late, async_op=True)
    micro_batch.complete = True  # it raised
    work.wait()
    dist.all_reduce(values)
    assert micro_batch.sums == []


@pytest.mark.parametrize("wrapper", ["_has_wrapper", "_fsdp2"])
def test_all_reduces_of_a_wrapper_are_not_sampled(observer: Collectives, wrapper: str) -> None:
    """FSDP2's run on a stream of their communication, in which nothing may be added."""
    setattr(observer, wrapper, True)
    window = OptimizerWindow(torch.optim.SGD([nn.Parameter(torch.ones(8))], 0.1))
    micro_batch = OpenMicroBatch(1, marked_windows=[window], complete=False)
    observer.backward_begins(micro_batch, ())
    dist.all_reduce(torch.ones(8))
    assert micro_batch.sums == []
