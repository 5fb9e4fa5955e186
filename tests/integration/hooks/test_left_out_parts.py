"""Parts that a training leaves out, and where it continues, as the hooks record them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, l1_loss, mse_loss

from gradledger.capture.layers import parameter_names
from gradledger.capture.layers.parameter_names import KEEPS_REFERENCED
from gradledger.capture.layers.weight_decay import weight_decay_of
from gradledger.records import MicroBatch, StepRecord, Unheld
from gradledger.torch_version import at_least
from helpers.device import arrive_late
from helpers.training import recording

searched = pytest.mark.skipif(
    not at_least(KEEPS_REFERENCED), reason="models are not searched for in this version of PyTorch"
)


class Blocks(nn.Module):
    """Some of them are in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.blocks = [nn.Linear(4, 4), nn.Linear(4, 4)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x).tanh()
        output: torch.Tensor = self.head(x)
        return output


def train(model: nn.Module, optimizers: list[torch.optim.Optimizer], steps: int = 31) -> None:
    for _ in range(steps):
        model.zero_grad()
        mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 2)).backward()
        for optimizer in optimizers:
            optimizer.step()


def unheld(records: list[StepRecord]) -> dict[int, Unheld]:
    return {record.step: record.unheld for record in records if record.unheld is not None}


# ---------------------------------------------------------------------- parameters in no optimizer


@searched
def test_parameters_that_no_optimizer_holds_are_named() -> None:
    model = Blocks()
    optimizer = torch.optim.SGD(model.first.parameters(), lr=0.1)
    with recording() as kept:
        train(model, [optimizer])
    steps = unheld([step.resolve() for step in kept.steps])
    assert list(steps) == [10, 20, 30]
    assert steps[10].names == [
        "head.weight",
        "head.bias",
        *(f"blocks[{i}].{name}" for i in (0, 1) for name in ("weight", "bias")),
    ]
    assert (steps[10].count, steps[10].listed, steps[10].elements) == (6, [2, 3, 4, 5], 50.0)


@searched
def test_what_another_optimizer_holds_or_the_loop_changes_is_not_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    created_before = torch.optim.SGD(model[1].parameters(), lr=0.1)  # before the hooks
    parameter_names.add_model(model)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with recording() as kept:
        train(model, [optimizer])
    assert unheld([step.resolve() for step in kept.steps]) == {}
    del created_before
    with recording() as kept:
        for _ in range(31):
            train(model, [optimizer], 1)
            with torch.no_grad():
                for parameter in model[1].parameters():
                    parameter.mul_(0.99)
    assert unheld([step.resolve() for step in kept.steps]) == {}


@searched
def test_the_rest_of_a_model_of_which_the_optimizer_got_a_part_is_named(
    searches: list[int],
) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 2))
    with recording() as kept:
        train(model, [torch.optim.SGD(model[1].parameters(), lr=0.1)])
    steps = unheld([step.resolve() for step in kept.steps])
    assert list(steps) == [20, 30]
    assert steps[20].names == ["Sequential.0.0.weight", "Sequential.0.0.bias"]
    assert len(searches) == 1


@searched
def test_models_are_searched_for_only_if_a_backward_reaches_others(searches: list[int]) -> None:
    model, discriminator = nn.Linear(4, 2), nn.Linear(2, 2)
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with recording() as kept:
        players = (model, discriminator)
        optimizers: list[torch.optim.Optimizer] = []
        optimizers += [torch.optim.SGD(player.parameters(), lr=0.1) for player in players]
        train(nn.Sequential(model, discriminator, frozen), optimizers)
    assert not searches
    assert unheld([step.resolve() for step in kept.steps]) == {}


@searched
def test_a_model_that_contains_no_parameter_of_the_optimizer_is_not_named(
    searches: list[int],
) -> None:
    """An attack trains a perturbation of the inputs, and nothing froze the model."""
    model = nn.Linear(4, 2)
    noise = nn.ParameterList([nn.Parameter(torch.zeros(4))])
    with recording() as kept:
        optimizer = torch.optim.SGD(noise.parameters(), lr=0.1)
        for _ in range(31):
            optimizer.zero_grad()
            mse_loss(model(torch.randn(8, 4) + noise[0]), torch.zeros(8, 2)).backward()
            optimizer.step()
    assert len(searches) == 1
    assert unheld([step.resolve() for step in kept.steps]) == {}


@searched
def test_weights_of_a_loss_in_no_optimizer_are_named() -> None:
    model, loss = nn.Linear(4, 8), nn.Linear(8, 2)
    temperature, frozen = nn.Parameter(torch.ones(())), nn.Linear(8, 2).requires_grad_(False)
    probe = torch.zeros(4, requires_grad=True)  # no parameter

    def unheld_by(*optimizers: torch.optim.Optimizer) -> dict[int, Unheld]:
        with recording() as kept:
            for _ in range(31):
                features = model(torch.randn(8, 4) + probe)
                error = mse_loss(loss(features) * temperature, torch.zeros(8, 2))
                optimizers[0].zero_grad()
                (error + frozen(features).square().mean()).backward()
                optimizers[0].step()
        return unheld([step.resolve() for step in kept.steps if step.optimizer == 0])

    steps = unheld_by(torch.optim.SGD(model.parameters(), lr=0.01))
    assert list(steps) == [20, 30]
    names = ["Linear.bias", "Linear.weight", "Parameter with one value"]
    assert (sorted(steps[20].names), steps[20].apart) == (names, [0, 1, 2])
    others = torch.optim.SGD([*loss.parameters(), temperature], lr=0.01)  # steps later
    assert unheld_by(torch.optim.SGD(model.parameters(), lr=0.01), others) == {}


@searched
def test_parameters_without_new_gradients_are_not_named_and_none_is_compared_by_value() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    other = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    parameter_names.add_model(model)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with recording() as kept:
        for step in range(31):
            if step == 6:  # another layer with as many values, between two of the comparisons
                model[1] = copy.deepcopy(other[1])
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            mse_loss(model(x), torch.zeros(8, 2)).backward()
            optimizer.step()
    assert list(unheld([step.resolve() for step in kept.steps])) == [20, 30]
    assert all("layers" not in step.missing for step in kept.steps)  # nothing has failed


@searched
def test_each_parameter_is_compared_for_itself() -> None:
    """One that gets no gradient between two comparisons does not hide the others."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    parameter_names.add_model(model)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with recording() as kept:
        for step in range(31):
            model[1].requires_grad_(step < 5)  # its gradient stays, and is looked at
            optimizer.zero_grad()
            mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 2)).backward()
            model[1].requires_grad_(True)
            optimizer.step()
    steps = unheld([step.resolve() for step in kept.steps])
    assert steps[20].names == ["2.weight", "2.bias"]


@searched
@pytest.mark.parametrize("late", [False, True])
def test_layers_that_are_unfrozen_later_are_named(
    monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    if late:
        arrive_late(monkeypatch.setattr)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    parameter_names.add_model(model)
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)
    with recording() as kept:
        train(model, [optimizer], 14)
        model[0].requires_grad_(True)
        train(model, [optimizer], 20)
    steps = unheld([step.resolve() for step in kept.steps])
    assert list(steps) == [30]
    assert (steps[30].names, steps[30].unfrozen) == (["0.weight", "0.bias"], [0, 1])


@searched
def test_what_a_new_optimizer_does_not_hold_is_named() -> None:
    """The body is unfrozen with an optimizer of that alone: the head has none any more."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    model[0].requires_grad_(False)
    with recording() as kept:
        train(model, [torch.optim.SGD(model[1].parameters(), lr=0.1)], 14)
        model[0].requires_grad_(True)
        train(model, [torch.optim.SGD(model[0].parameters(), lr=0.1)], 24)
    records = [step.resolve() for step in kept.steps]
    assert unheld([each for each in records if each.optimizer == 0]) == {}
    names = unheld([each for each in records if each.optimizer == 1])[20].names
    assert names == ["Sequential.1.weight", "Sequential.1.bias"]


@searched
def test_what_joins_the_optimizer_when_it_is_unfrozen_is_not_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    parameter_names.add_model(model)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    with recording() as kept:
        train(model, [optimizer], 14)
        model[0].requires_grad_(True)
        optimizer.add_param_group({"params": list(model[0].parameters())})
        train(model, [optimizer], 20)
    assert unheld([step.resolve() for step in kept.steps]) == {}


# ---------------------------------------------------------------------- weight decay


def test_the_decay_of_the_optimizers_of_pytorch_is_read_from_their_groups() -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    groups = [{"params": [first], "weight_decay": 0.1}, {"params": [second], "weight_decay": 0.0}]
    coupled = weight_decay_of(torch.optim.Adam(list(map(dict, groups)), lr=0.5))
    assert coupled is not None and not coupled.decoupled
    assert coupled.factors == {id(first): 0.1, id(second): 0.0}
    decoupled = weight_decay_of(torch.optim.AdamW(list(map(dict, groups)), lr=0.5))
    assert decoupled is not None and decoupled.decoupled
    assert decoupled.factors == {id(first): 0.05, id(second): 0.0}
    in_a_tensor = weight_decay_of(torch.optim.AdamW(list(map(dict, groups)), lr=torch.tensor(0.5)))
    assert in_a_tensor == decoupled


def test_of_another_optimizer_the_decay_is_not_known() -> None:
    class Own(torch.optim.SGD):
        """It may do anything with its decay."""

    weights = [nn.Parameter(torch.ones(2))]
    assert weight_decay_of(Own(weights, lr=0.1, weight_decay=0.1)) is None
    assert weight_decay_of(torch.optim.SGD(weights, lr=0.1)) is None
    ascent = torch.optim.AdamW(weights, lr=0.1, weight_decay=0.1)
    for wrong in (-0.1, float("nan"), float("inf")):
        ascent.param_groups[0]["lr"] = wrong
        assert weight_decay_of(ascent) is None


# ---------------------------------------------------------------------- parts of the loss


def parts(kind: str, **more: float) -> list[float | None]:
    """The part without a gradient of three micro-batches, with what was really added to them."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    added, scale = [], more.get("scale", 1.0)
    with recording() as kept:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(3):
            x, y = torch.randn(8, 4), torch.randint(3, (8,))
            loss = cross_entropy(model(x), y, label_smoothing=more.get("smoothing", 0.0))
            extra: torch.Tensor | float = 0.5 + 0.1 * number
            if kind == "detached":
                extra = mse_loss(model(x), x[:, :3]).detach()
            elif kind == "penalty":
                extra = 0.5 + model.weight.square().sum()
            elif kind == "none":
                extra = 0 * loss
            added.append(float(torch.as_tensor(extra).detach()) * scale)
            optimizer.zero_grad()
            ((loss + extra) * scale).backward()
            optimizer.step()
    values = [step.resolve().micro_batches[0].without_gradient for step in kept.steps]
    if kind in ("number", "detached") and not more.get("smoothing"):
        assert values == pytest.approx(added, abs=1e-5 * scale, rel=1e-5)
    return values


@pytest.mark.parametrize("scale", [1.0, 0.25, 1024.0])
@pytest.mark.parametrize("kind", ["number", "detached"])
def test_what_is_added_without_a_gradient_is_measured(kind: str, scale: float) -> None:
    assert None not in parts(kind, scale=scale)


def test_beside_a_penalty_with_a_gradient_or_an_unknown_loss_it_is_not() -> None:
    assert parts("penalty") == [None] * 3
    assert parts("none") == [None] * 3
    assert parts("number", smoothing=0.1) == [None] * 3


@pytest.mark.parametrize("kind", ["absolute", "squares", "sum", "masked", "penalties"])
def test_beside_a_mean_of_absolute_values_or_squares_it_is_measured_too(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    with recording() as kept:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(8, 4)
        difference = model(x) - x[:, :3]
        loss = {
            "absolute": l1_loss(model(x), x[:, :3]),
            "squares": (difference**2).mean() / 2,
            "sum": difference.abs().sum() / 24,
            "masked": (difference.abs() * (x[:, :3] > 0)).mean(),
            "penalties": l1_loss(model(x), x[:, :3])
            + 0.1 * (model.weight.square().sum() + model.bias.square().sum()),
        }[kind]
        (loss + 0.25).backward()
        optimizer.step()
    measured = kept.steps[0].resolve().micro_batches[0].without_gradient
    known = kind not in ("masked", "penalties")
    assert measured == (pytest.approx(0.25, rel=1e-5) if known else None)


def test_a_gradient_of_the_caller_multiplies_the_loss_and_states_nothing_of_its_parts() -> None:
    model = nn.Linear(4, 3)
    with recording() as kept:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = cross_entropy(model(torch.randn(8, 4)), torch.randint(3, (8,))) + 0.5
        loss.backward(torch.tensor(0.25))
        optimizer.step()
    assert kept.steps[0].resolve().micro_batches[0].without_gradient is None


# ---------------------------------------------------------------------- where it continues


def one_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> None:
    optimizer.zero_grad()
    scaler.scale(model(torch.randn(8, 4)).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()


def test_an_optimizer_that_replaces_another_one_and_loaded_states_are_recorded() -> None:
    model = nn.Linear(4, 2)
    with recording() as kept:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for _ in range(3):
            one_step(model, optimizer, scaler)
        saved = optimizer.state_dict(), scaler.state_dict()
        del optimizer, scaler
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        optimizer.load_state_dict(saved[0])
        scaler.load_state_dict(saved[1])
        one_step(model, optimizer, scaler)
        other = nn.Linear(4, 2)
        one_step(other, torch.optim.SGD(other.parameters(), lr=0.01), scaler)
    *early, later, elsewhere = [step.resolve() for step in kept.steps]
    assert [record.replaced for record in early] == [None] * 3
    assert later.replaced is not None and later.replaced.scaler is not None
    assert (later.replaced.optimizer, later.replaced.steps) == (0, 3)
    assert (later.replaced.scaler.ordinal, later.replaced.scaler.scale) == (1, 8.0)
    assert later.scaler is not None and (later.scaler.ordinal, later.scaler.loaded) == (2, True)
    assert later.events[0].op == "load_state"
    assert elsewhere.replaced is None


Scale = Callable[[Any], Any]


def halved_in_place(scale: Scale, loss: torch.Tensor) -> torch.Tensor:
    scaled: torch.Tensor = scale(loss)
    scaled /= 2
    return scaled


def of_one_step(root: Callable[..., Any]) -> MicroBatch:
    """The micro-batch of a step, whose backward starts from what ``root`` makes of a loss."""
    model, scaler = nn.Linear(4, 2), torch.amp.GradScaler("cpu", init_scale=8.0)
    with recording() as kept:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        root(
            scaler.scale, cross_entropy(model(torch.randn(5, 4)), torch.zeros(5).long())
        ).backward()
        scaler.step(optimizer)
    (micro_batch,) = kept.steps[0].resolve().micro_batches
    return micro_batch


@pytest.mark.parametrize(
    "root",
    [
        lambda scale, loss: scale(loss / 2),
        lambda scale, loss: scale(loss) / 2,
        halved_in_place,
        lambda scale, loss: scale(loss / 2).double().mean(),
        lambda scale, loss: sum(scale(loss) for _ in range(3)) / 6,
        lambda scale, loss: sum(scale([loss / 4, loss / 4])),
    ],
)
def test_what_the_loop_computes_from_scaled_losses_is_scaled(root: Callable[..., Any]) -> None:
    micro_batch = of_one_step(root)
    (each,) = micro_batch.terms
    assert micro_batch.scale == 8.0
    assert each.weight == pytest.approx(8 / 2 / 5)
    assert each.coefficient in (None, 0.5) and each.outer_coefficient in (None, 0.5)


@pytest.mark.parametrize(
    "root",
    [
        lambda scale, loss: scale(loss) + loss,
        lambda scale, loss: scale(loss) * loss,
        lambda scale, loss: 1 / scale(loss),
        lambda scale, loss: scale(loss).sqrt(),
        lambda scale, loss: scale(loss).detach() * loss,
    ],
)
def test_what_else_is_computed_from_them_is_not(root: Callable[..., Any]) -> None:
    assert of_one_step(root).scale is None


def test_backwards_of_several_losses_have_the_task_of_the_first() -> None:
    heads = [nn.Linear(4, 3) for _ in range(4)]
    labels = torch.zeros(5).long()
    with recording() as kept:
        optimizer = torch.optim.SGD([p for head in heads for p in head.parameters()], lr=0.01)
        for pair in ((0, 1), (2, 3), (0, 1), (2,)):
            x = torch.randn(5, 4)
            sum(cross_entropy(heads[i](x), labels) / 2 for i in pair).backward()  # type: ignore[union-attr]
        optimizer.step()
    one, other, again, alone = kept.steps[0].resolve().micro_batches
    assert one.task is not None and one.task == again.task != other.task
    assert alone.task is None and alone.terms[0].head == other.task


def test_a_scaled_loss_from_which_no_backward_starts_is_unused() -> None:
    model, scaler = nn.Linear(4, 2), torch.amp.GradScaler("cpu", init_scale=8.0)
    with recording() as kept:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for used in (False, True, False):
            loss = cross_entropy(model(torch.randn(5, 4)), torch.zeros(5).long())
            scaled = scaler.scale(loss)
            (scaled / 2 if used else loss).backward()
            scaler.step(optimizer)
            scaler.update()
    scalers = [step.resolve().scaler for step in kept.steps]
    assert [each.unused for each in scalers if each is not None] == [True, False, True]


def test_scaled_outputs_leave_open_if_the_loss_is_scaled() -> None:
    model, scaler = nn.Linear(4, 2), torch.amp.GradScaler("cpu", init_scale=8.0)
    with recording() as kept:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            scaler.scale(model(torch.randn(5, 4))).mean().backward()
            scaler.step(optimizer)
            scaler.update()
    micro_batch = kept.steps[1].resolve().micro_batches[0]
    assert micro_batch.scale is None and "several values" in micro_batch.missing["scale"]


def test_each_call_and_micro_batch_has_the_number_of_its_scaler() -> None:
    model = nn.Linear(4, 2)
    first, second = (torch.amp.GradScaler("cpu", init_scale=s) for s in (8.0, 16.0))
    with recording() as kept:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for scaler in (first, second):
            scaler.scale(model(torch.randn(8, 4)).square().mean()).backward()
        first.unscale_(optimizer)
        first.step(optimizer)
    record = kept.steps[0].resolve()
    assert [(m.scaler, m.scale) for m in record.micro_batches] == [(1, 8.0), (2, 16.0)]
    calls = [(e.op, e.scaler) for e in record.events if e.op != "new_scaler"]
    assert calls == [("unscale", 1), ("scaler_step", 1)]
