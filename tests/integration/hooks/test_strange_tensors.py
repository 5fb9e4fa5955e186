"""Modes, subclasses and tensors without numbers: our own operations are invisible to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gradledger.capture.recorder import Recorder
from gradledger_monitor.ingest.schema import StepRecord
from helpers.pytorch import since
from helpers.training import (
    INPUTS,
    accused,
    cross_entropy,
    recording,
    tiny_model,
    tokens,
    windows,
)


def train(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> list[Tensor]:
    """A right loop of three windows."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for window in windows(3):
        count = sum(map(tokens, window))
        for batch in window:
            (cross_entropy(model, batch, reduction="sum") / count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


class Functions(TorchFunctionMode):
    """Writes down every function that is called under it."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.log.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Writes down every operator that runs under it."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log = log

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.log.append(str(func))
        return func(*args, **(kwargs or {}))


def test_modes_of_the_script_see_nothing_of_ours() -> None:
    def logged() -> list[str]:
        log: list[str] = []
        with Operators(log), Functions(log):
            train(tiny_model())
        return log

    logged()  # PyTorch 2.8 imports modules at first use, and these call functions
    alone = logged()
    with recording() as recorded:
        observed = logged()
    assert observed == alone
    assert recorded.evaluation().verdict == "balanced"


def test_a_default_device_of_the_script_is_not_ours() -> None:
    with recording() as recorded:
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        window = windows(1)[0]
        torch.set_default_device("meta")
        try:
            for batch in window:
                (cross_entropy(model, batch, reduction="sum") / 8).backward()
            optimizer.step()
        finally:
            torch.set_default_device(None)
    assert recorded.records()[0].norm is not None


class Logged(Tensor):
    """A subclass that writes down what is done to it."""

    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(  # type: ignore[no-untyped-call]
            func, types, args, kwargs or {}
        )


def test_subclasses_of_the_script_see_nothing_of_ours() -> None:
    def logged() -> list[str]:
        Logged.calls.clear()
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for window in windows(3):
            count = sum(map(tokens, window))
            for inputs, labels in window:
                batch = inputs.as_subclass(Logged), labels  # so is the loss, then
                (cross_entropy(model, batch, reduction="sum") / count).backward()
            optimizer.step()
            optimizer.zero_grad()
        return list(Logged.calls)

    logged()  # PyTorch 2.8 imports modules at first use, and these call functions
    alone = logged()
    with recording() as recorded:
        observed = logged()
    assert observed == alone
    assert recorded.evaluation().verdict == "balanced"


def step_on(device: str) -> None:
    """One training step whose tensors have no numbers."""
    with torch.device(device):
        model = nn.Linear(INPUTS, 3)
        optimizer = torch.optim.AdamW(model.parameters())
        loss = nn.functional.cross_entropy(
            model(torch.empty(4, INPUTS)), torch.zeros(4, dtype=torch.long)
        )
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()


def fake() -> None:
    """A dry run on fake tensors."""
    with FakeTensorMode():
        step_on("cpu")


def meta() -> None:
    """A dry run on the meta device."""
    step_on("meta")


@pytest.mark.parametrize("dry_run", [fake, meta])
def test_dry_runs_are_left_alone_beside_a_real_training(dry_run: Callable[[], None]) -> None:
    alone = train(tiny_model())
    with recording() as recorded:
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        dry_run()
        observed = train(model, optimizer)
        dry_run()
    assert all(torch.equal(a, b) for a, b in zip(alone, observed, strict=True))
    assert {step.optimizer for step in recorded.steps} == {0}
    assert len(recorded.steps) == 3
    assert recorded.evaluation().verdict == "balanced"


def test_a_record_is_read_without_a_tensor_operation() -> None:
    """The background thread reads records; it must not run under modes of the training thread."""
    log: list[str] = []
    with recording() as recorded:
        train(tiny_model())
        with Operators(log), Functions(log):
            records = recorded.records()
    assert len(records) == 3
    assert log == []


def test_complex_parameters_are_measured() -> None:
    torch.manual_seed(0)
    with recording() as recorded:
        weight = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        norms = []
        for _ in range(3):
            for _ in range(2):
                inputs, wanted = torch.randn(5, 4, dtype=torch.complex64), torch.randn(5, 3)
                (nn.functional.mse_loss((inputs @ weight).abs(), wanted) / 2).backward()
            assert weight.grad is not None
            norms.append(float(torch.linalg.vector_norm(weight.grad)))
            optimizer.step()
            optimizer.zero_grad()
    records = recorded.records()
    assert [record.norm for record in records] == pytest.approx(norms)
    assert [record.post_factor for record in records] == [1.0, 1.0, 1.0]
    assert recorded.evaluation().verdict == "balanced"


ITERABLES: list[Callable[[list[Tensor]], Any]] = [
    lambda losses: (loss for loss in losses),
    lambda losses: iter(losses),
    lambda losses: dict(enumerate(losses)).values(),
    tuple,
    list,
]


@pytest.mark.parametrize(
    "roots", ITERABLES, ids=["generator", "iterator", "values", "tuple", "list"]
)
def test_any_iterable_of_roots_reaches_autograd_whole(roots: Callable[[list[Tensor]], Any]) -> None:
    def run() -> list[Tensor]:
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for window in windows(3):
            torch.autograd.backward(roots([cross_entropy(model, b) / 4 for b in window]))
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach() for parameter in model.parameters()]

    alone = run()
    with recording() as recorded:
        observed = run()
    assert all(torch.equal(a, b) for a, b in zip(alone, observed, strict=True))
    assert [len(record.micro_batches[0].terms) for record in recorded.records()] == [4, 4, 4]


@pytest.mark.parametrize(
    "in_list",
    [True, pytest.param(False, marks=since("2.7", "an edge is a root only as a part of a list"))],
)
def test_a_gradient_edge_is_a_root_like_its_tensor(in_list: bool) -> None:
    with recording() as recorded:
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for window in windows(3):
            count = sum(map(tokens, window))
            for batch in window:
                loss = cross_entropy(model, batch, reduction="sum") / count
                edge = torch.autograd.graph.get_gradient_edge(loss)
                root: Any = [edge] if in_list else edge
                torch.autograd.backward(root, grad_tensors=[torch.ones(())])
            optimizer.step()
            optimizer.zero_grad()
    assert recorded.evaluation().verdict == "balanced"
    assert accused(recorded.evaluation()) == {}


def test_a_backward_that_a_function_mode_calls_again_has_each_loss_once() -> None:
    """``torch.autograd.backward`` itself dispatches to modes, in PyTorch 2.13 before its engine."""
    with recording() as recorded, Functions([]):
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for window in windows(3):
            count = sum(map(tokens, window))
            for batch in window:
                torch.autograd.backward(cross_entropy(model, batch, reduction="sum") / count)
            optimizer.step()
            optimizer.zero_grad()
    assert {len(m.terms) for record in recorded.records() for m in record.micro_batches} == {1}
    assert recorded.evaluation().verdict == "balanced"


@pytest.mark.parametrize("divided", [False, True])
def test_a_second_backward_through_a_freed_graph_is_the_mistake_of_the_script_alone(
    divided: bool,
) -> None:
    with recording() as recorded:
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for window in windows(3):
            loss = cross_entropy(model, window[0])
            loss = loss / torch.tensor(4.0) if divided else loss
            loss.backward()
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    terms = [[len(m.terms) for m in record.micro_batches] for record in recorded.records()]
    assert terms == [[1], [1], [1]]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_compressed_sparse_gradients_have_no_norm_and_a_reason() -> None:
    with recording() as recorded:
        weight = nn.Parameter(torch.eye(4).to_sparse_csr())
        optimizer = torch.optim.SGD([weight], lr=0.01)
        for _ in range(3):
            torch.sparse.mm(weight, torch.ones(4, 2)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [record.missing["norm"] for record in recorded.records()] == ["sparse gradients"] * 3


def sparse_records(clear: Callable[[Any], None], scale: float = 1.0) -> list[StepRecord]:
    """Three steps of a sparse embedding on two micro-batches each."""
    torch.manual_seed(0)
    table = nn.Embedding(50, 8, sparse=True)
    with recording() as recorded:
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.01)
        for _ in range(3):
            for rows in ([1, 2, 3], [7, 2, 9, 11]):
                (table(torch.tensor(rows)).square().mean() / 2).backward()
            assert table.weight.grad is not None
            table.weight.grad.mul_(scale)
            optimizer.step()
            clear(optimizer)
    return recorded.records()


@pytest.mark.parametrize("to_none", [True, False])
def test_sparse_gradients_are_sampled(to_none: bool) -> None:
    """Those of two micro-batches have other entries, in another order."""
    for record in sparse_records(lambda o: o.zero_grad(set_to_none=to_none), scale=0.5):
        assert [m.fresh for m in record.micro_batches] == [True, False]
        assert record.post_factor == pytest.approx(0.5)
        assert record.missing["norm"] == "sparse gradients"


def test_sparse_gradients_that_are_not_zeroed_are_not_fresh() -> None:
    kept = sparse_records(lambda _: None)
    assert [record.micro_batches[0].fresh for record in kept] == [True, False, False]


def test_operations_of_watch_and_resume_are_hidden_from_modes() -> None:
    log: list[str] = []
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    recorder = Recorder(lambda _: None)
    recorder.install()
    cross_entropy(model, windows(1)[0][0]).backward()
    try:
        with Functions(log):
            recorder.watch(optimizer)
            recorder.uninstall()
            recorder.resume()
    finally:
        recorder.uninstall()
    assert log == []


def test_losses_of_a_micro_batch_without_elements_are_observed() -> None:
    model = tiny_model()
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for rows in (0, 3):
            targets = torch.zeros(rows, dtype=torch.long)
            losses = nn.functional.cross_entropy(
                model(torch.randn(rows, INPUTS)), targets, reduction="none"
            )
            (losses.sum() / 3).backward()
        optimizer.step()
    assert accused(recorded.evaluation()) == {}
    assert recorded.evaluation().verdict == "balanced"


def test_the_norm_is_zero_if_clipped_gradients_are_zeroed_before_the_step() -> None:
    model = tiny_model()
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        cross_entropy(model, windows(1)[0][0]).backward()
        for index, parameter in enumerate(model.parameters()):
            assert parameter.grad is not None
            parameter.grad *= 2.0**index  # no common factor, as after an all-reduce
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.zero_grad()
        optimizer.step()
    assert recorded.records()[0].norm == 0
    assert "loop.zeroed_before_step" in accused(recorded.evaluation())
