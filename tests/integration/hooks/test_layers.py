"""What is sent of the layers is what the tensors hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn

from gradledger.capture.async_copy import Deferred
from gradledger.capture.layers.parameter_names import KEEPS_REFERENCED
from gradledger.capture.layers.untrained import Untrained
from gradledger.capture.open_records import OpenStep
from gradledger.capture.recorder import Recorder
from gradledger.observers.norms.layer_norms import MOST_OPTIMIZERS
from gradledger.records import StepRecord
from gradledger.torch_version import at_least

searched = pytest.mark.skipif(
    not at_least(KEEPS_REFERENCED), reason="names are not searched for in this version of PyTorch"
)


class Model(nn.Module):
    """The layer in the middle is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.unused, self.last = (nn.Linear(4, 4) for _ in range(3))
        self.last.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(torch.relu(self.first(x)))
        return output


def rms(tensor: torch.Tensor | None) -> float | None:
    return None if tensor is None else float(f"{float(tensor.detach().square().mean().sqrt()):.3g}")


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[StepRecord]:
    closed: list[OpenStep] = []
    recorder = Recorder(closed.append)
    recorder.install()
    try:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    finally:
        recorder.uninstall()
    return [step.resolve() for step in closed]


@searched
def test_the_figures_are_those_of_the_tensors() -> None:
    model = Model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (record,) = train(model, optimizer, 1)
    layers = record.layers
    assert layers is not None
    assert layers.names == [
        *("first.weight", "first.bias", "unused.weight", "unused.bias", "last.weight"),
    ]
    assert (layers.parameters, layers.frozen, layers.sizes) == (5, 1, [16, 4, 16, 4, 16])
    after = dict(model.named_parameters())
    gradients = [rms(after[n].grad) for n in layers.names]
    assert gradients[2:4] == [None, None]
    assert layers.gradient == gradients
    assert layers.parameter == pytest.approx([rms(before[n]) for n in layers.names], rel=0.01)
    moved = [rms(after[n] - before[n]) for n in layers.names]
    assert layers.update == pytest.approx(moved, rel=0.01)


def test_a_few_steps_are_measured_and_the_others_are_not() -> None:
    model = Model()
    records = train(model, torch.optim.AdamW(model.parameters()), 12)
    assert [r.step for r in records if r.layers is not None] == [1, 2, 3, 5, 10]
    assert not any("layers" in r.missing for r in records)


@searched
def test_names_leave_out_wrappers_and_tell_equal_models_apart() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.module(x)
            return output

    model, other = Wrapper(nn.Linear(4, 4)), nn.Linear(4, 4)
    (record,) = train(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    assert record.layers is not None and record.layers.names == ["weight", "bias"]
    both = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    (record,) = train(model, both, 1)
    assert record.layers is not None and len(set(record.layers.names)) == 4
    assert {name.rpartition(".")[0] for name in record.layers.names} == {"Wrapper[0]", "Linear[1]"}


def test_names_given_to_the_optimizer_and_unnamed_tensors() -> None:
    weight, other = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    named = torch.optim.SGD([("mine", weight), ("other", other)], lr=0.1)
    model = nn.Module()
    model.forward = lambda x: x @ weight @ other
    (record,) = train(model, named, 1)
    assert record.layers is not None and record.layers.names == ["mine", "other"]
    (record,) = train(model, torch.optim.SGD([weight, other], lr=0.1), 1)
    assert record.layers is not None and record.layers.names == ["parameter 0", "parameter 1"]


@searched
def test_a_layer_that_had_a_gradient_before_is_marked() -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.state[model.unused.weight] = {"step": torch.tensor(1.0)}
    recorded: list[OpenStep] = []
    recorder = Recorder(recorded.append)
    recorder.install()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    recorder.uninstall()
    layers = recorded[0].resolve().layers
    assert layers is not None
    assert [layers.names[i] for i in layers.earlier] == ["unused.weight"]


@searched
def test_parameters_that_never_had_a_gradient_are_followed_at_every_step() -> None:
    """Also between the steps at which the layers are measured: here the third, at step 4."""
    first, second, third, fourth = (nn.Parameter(torch.ones(2)) for _ in range(4))
    model = nn.ParameterList([first, second, third, fourth])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    closed: list[OpenStep] = []
    recorder = Recorder(closed.append)
    recorder.install()
    try:
        for step in range(1, 6):
            optimizer.zero_grad()
            loss = first.sum() + 0 * fourth.sum()
            (loss + third.sum() * 1e-30 if step == 4 else loss).backward()
            optimizer.step()
    finally:
        recorder.uninstall()
    layers = closed[-1].resolve().layers
    assert layers is not None
    assert layers.observed == 5
    assert [layers.names[i] for i in layers.untrained] == ["1", "3"]
    assert layers.gradient == [1.0, None, None, 0.0]


class Adapter(nn.Module):
    """A frozen layer, and a product of two matrices beside it, of which the second starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(4, 2, bias=False)})  # as PEFT has them
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 4, bias=False)})
        for parameter in self.lora_B.parameters():
            nn.init.zeros_(parameter)
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.base(x) + self.lora_B["default"](self.lora_A["default"](x))
        return output


@searched
@pytest.mark.parametrize(
    ("frozen", "zeros"),
    [
        ("lora_B", {"0.lora_A.default.weight": "0.lora_B.default.weight"}),
        ("lora_A", {}),  # that is how LoRA-FA works: the other one has a gradient
        ("nothing", {}),
    ],
)
def test_frozen_matrices_of_zeros_beside_layers_without_a_gradient_are_named(
    frozen: str, zeros: dict[str, str]
) -> None:
    model = nn.Sequential(Adapter(), nn.ReLU(), nn.Linear(4, 1))
    for name, parameter in model.named_parameters():
        if frozen in name:
            parameter.requires_grad_(False)
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)
    layers = [step.layers for step in train(model, optimizer, 10) if step.layers is not None]
    assert layers[-1].observed == 10
    assert [each.frozen_zeros for each in layers] == [{}] * (len(layers) - 1) + [zeros]


class Frozen(nn.Module):
    """A matrix that is not trained, beside a layer whose outputs are all 0."""

    def __init__(self, matrix: torch.Tensor) -> None:
        super().__init__()
        self.mixes = nn.Parameter(matrix, requires_grad=False)
        self.layer = nn.Linear(4, matrix.shape[1])
        nn.init.constant_(self.layer.bias, -100.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(x).relu() @ self.mixes.float().T
        return output


NEARLY_ZERO = torch.zeros(64, 512)
NEARLY_ZERO[7, 100] = 1e-30


@searched
@pytest.mark.parametrize(
    ("matrix", "is_paired"),
    [
        (torch.zeros(64, 512), True),
        (NEARLY_ZERO, False),  # every value is read
        (torch.zeros(64, 512).to(torch.float8_e4m3fn), False),  # not read
        (torch.zeros(4, 4), False),  # the shape of the weight: it may be of another adapter
    ],
)
def test_a_frozen_matrix_is_one_of_zeros_if_all_of_its_values_are_0(
    matrix: torch.Tensor, is_paired: bool
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Frozen(matrix))
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)
    layers = train(model, optimizer, 10)[-1].layers
    assert layers is not None and layers.observed == 10
    assert layers.frozen_zeros == ({"1.layer.weight": "1.mixes"} if is_paired else {})


@searched
def test_parameters_with_state_of_a_checkpoint_had_a_gradient() -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.state[model.unused.weight] = {"step": torch.tensor(1.0)}
    layers = train(model, optimizer, 1)[0].layers
    assert layers is not None
    assert [layers.names[i] for i in layers.untrained] == ["unused.bias"]


def test_norms_that_were_never_copied_from_a_device_count_as_gradients() -> None:
    parameter, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    untrained = Untrained()
    untrained.start([parameter, other], {})
    lost = Deferred.of([0.0])
    lost._values = None
    untrained.add([id(parameter)], lost)
    assert untrained.gradients() == ([], [])
    assert untrained.among([parameter, other])() == {1}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_parameters_that_cannot_be_read_are_the_reason() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(4).to_sparse_csr())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = torch.sparse.mm(self.weight, x[:4])
            return output

    model = Weighted()
    (record,) = train(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    assert record.layers is None
    assert record.missing["layers"] == "no parameter that requires a gradient can be read"


def test_nothing_is_remembered_once_every_parameter_has_had_a_gradient() -> None:
    parameter = nn.Parameter(torch.ones(2))
    untrained = Untrained()
    untrained.start([parameter], {})
    for _ in range(3):
        untrained.add([id(parameter)], Deferred.of([1.0]))
        assert untrained.gradients() == ([], [])
    assert not untrained._unread and not untrained._followed


def first_steps(
    models: list[Model], parameters: Callable[[Model], Iterable[nn.Parameter]] = Model.parameters
) -> list[StepRecord]:
    """Of an optimizer for each model, one after the other."""
    closed: list[OpenStep] = []
    recorder = Recorder(closed.append)
    recorder.install()
    try:
        for model in models:
            optimizer = torch.optim.SGD(parameters(model), lr=0.1)
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    finally:
        recorder.uninstall()
    return [step.resolve() for step in closed]


def test_layers_are_measured_of_a_few_optimizers_only() -> None:
    """A search of hyperparameters creates hundreds, and each begins with measured steps."""
    records = first_steps([Model() for _ in range(MOST_OPTIMIZERS + 2)])
    assert [r.layers is not None for r in records] == [True] * MOST_OPTIMIZERS + [False] * 2
    assert "layers" in records[-1].missing


@searched
def test_one_search_finds_the_names_of_all_models(searches: list[int]) -> None:
    records = first_steps([Model(), Model()], lambda model: [*model.parameters()])
    names = [r.layers.names for r in records if r.layers is not None]
    assert len(names) == 2 and names[0] == names[1] and "first.weight" in names[0]
    assert len(searches) == 1


def test_a_model_whose_parameters_an_optimizer_gets_is_not_searched_for(
    searches: list[int],
) -> None:
    (record,) = first_steps([Model()])
    assert record.layers is not None and "first.weight" in record.layers.names
    assert not searches


@pytest.mark.parametrize("rate", [1e-6, 1e-2])
def test_coordinates_in_half_precision_that_a_step_leaves_as_they_are_are_counted(
    rate: float,
) -> None:
    """64 at most of each parameter: those of this model are all sampled."""
    model = nn.Linear(4, 8).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    closed: list[OpenStep] = []
    recorder = Recorder(closed.append)
    recorder.install()
    try:
        optimizer.zero_grad()
        model(torch.randn(8, 4, dtype=torch.bfloat16)).square().mean().backward()
        before = [p.detach().clone() for p in model.parameters()]
        slopes = [p.grad for p in model.parameters() if p.grad is not None]
        optimizer.step()
    finally:
        recorder.uninstall()
    layers = closed[0].resolve().layers
    pairs = [*zip(model.parameters(), before, slopes, strict=True)]
    assert layers is not None
    assert layers.rounded == sum(int((slope != 0).sum()) for *_, slope in pairs) > 0
    assert layers.unmoved == sum(int(((p == b) & (s != 0)).sum()) for p, b, s in pairs)
    assert (layers.unmoved > layers.rounded / 2) == (rate == 1e-6)


@pytest.mark.parametrize(
    ("rates", "counted"),
    [((1e-10, 1e-10), True), ((1e-10, 1e-3), False), ((0.0, 1e-10), False), ((1e-3, 1e-3), False)],
)
def test_coordinates_in_float32_are_counted_if_all_learning_rates_are_tiny(
    rates: tuple[float, float], counted: bool
) -> None:
    model = nn.Linear(4, 8)
    groups = [
        {"params": [p], "lr": rate} for p, rate in zip(model.parameters(), rates, strict=True)
    ]
    closed: list[OpenStep] = []
    recorder = Recorder(closed.append)
    recorder.install()
    try:
        optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
        model(torch.randn(8, 4)).square().mean().backward()
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
    finally:
        recorder.uninstall()
    layers = closed[0].resolve().layers
    assert layers is not None and layers.single == counted
    assert layers.rounded == (40 if counted else 0)
    if counted:
        pairs = zip(model.parameters(), before, strict=True)
        assert layers.unmoved == sum(int((p == b).sum()) for p, b in pairs) > 30


def test_coordinates_that_no_optimizer_of_pytorch_rounds_are_not_counted() -> None:
    class Stochastic(torch.optim.SGD):
        """It may round at random."""

    half = nn.Linear(4, 4).to(torch.bfloat16)
    for optimizer in (
        torch.optim.SGD(nn.Linear(4, 4).parameters(), lr=0.1),
        Stochastic(half.parameters(), lr=0.1),
        torch.optim.SGD(half.parameters(), lr=0.0),
    ):
        (parameters,) = (group["params"] for group in optimizer.param_groups)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        model = nn.ParameterList(parameters)
        closed: list[OpenStep] = []
        recorder = Recorder(closed.append)
        recorder.install()
        try:
            torch.cat([p.float().flatten() for p in model]).sum().backward()
            optimizer.step()
        finally:
            recorder.uninstall()
        layers = closed[0].resolve().layers
        assert layers is not None and (layers.rounded, layers.unmoved) == (0, 0)
