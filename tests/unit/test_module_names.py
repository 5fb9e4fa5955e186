"""Several losses are called by the modules from whose outputs they are computed."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradledger.capture.layers import module_names, parameter_names
from gradledger.observers.losses import tasks
from gradledger.observers.losses.autograd_graph import find_losses
from gradledger.observers.losses.tasks import FIRST_MICRO_BATCHES, ModulesBelow
from gradledger_monitor.rules.objective_names import objective_name
from helpers.facts import facts, record, term


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(6, 4)
        self.lm_head = nn.Linear(4, 6, bias=False)
        self.lm_head.weight = self.words.weight
        self.value = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        self.table = nn.Parameter(torch.ones(4, 6))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoHeads]:
    """A model that the script passed to ``gradledger.watch``."""
    monkeypatch.setattr(parameter_names, "_references", [])
    model = TwoHeads()
    parameter_names.add_model(model)
    yield model


def names(*losses: Any) -> tuple[str | None, ...]:
    return ModulesBelow().names([each for loss in losses for each in find_losses(loss.grad_fn)], 1)


def test_a_loss_is_called_by_its_head_through_views_casts_slices_and_functions_of_it(
    model: TwoHeads,
) -> None:
    hidden = model.words(torch.tensor([[0, 1, 2], [3, 4, 5]]))
    classes = torch.tensor([0, 1, 2, 3])
    logits = model.lm_head(hidden)[:, :-1].float().reshape(-1, 6)
    values = model.value(hidden).squeeze(-1)
    assert names(
        F.cross_entropy(logits, classes) / 2,
        F.mse_loss(values, torch.ones(2, 3)),
        -logits.log_softmax(-1).gather(1, classes[:, None]).mean(),
    ) == ("lm_head", "value.2", "lm_head")


def test_a_loss_over_several_outputs_or_over_no_module_has_no_name(model: TwoHeads) -> None:
    hidden = model.words(torch.tensor([[0, 1, 2]]))
    classes = torch.tensor([[0, 1, 2]])
    both = model.lm_head(hidden) + model.value(hidden)
    assert names(
        F.cross_entropy(both.transpose(1, 2), classes),
        F.cross_entropy((hidden @ model.table).transpose(1, 2), classes),
        F.cross_entropy(F.layer_norm(both, (6,)).transpose(1, 2), classes),
    ) == (None, None, None)


def test_a_name_that_two_models_have_is_none(model: TwoHeads) -> None:
    other = TwoHeads()
    parameter_names.add_model(other)
    losses = [F.mse_loss(each.value(torch.ones(2, 4)), torch.ones(2, 1)) for each in (model, other)]
    assert names(*losses) == (None, None)


def test_the_graph_is_followed_in_the_first_micro_batches_only(
    model: TwoHeads, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = F.mse_loss(model.value(torch.ones(2, 4)), torch.ones(2, 1))
    losses, modules = find_losses(loss.grad_fn), ModulesBelow()
    for _ in range(FIRST_MICRO_BATCHES):
        assert modules.names(losses, 1) == ("value.2",)
    monkeypatch.setattr(modules, "_modules", None)
    assert modules.names(losses, 1) == ("value.2",)


def test_the_name_is_lost_if_it_changes(model: TwoHeads) -> None:
    hidden, modules = torch.ones(2, 4), ModulesBelow()
    for head in (model.value, model.lm_head):
        loss = F.mse_loss(head(hidden)[:, 0], torch.ones(2))
        latest = modules.names(find_losses(loss.grad_fn), None)
    assert latest == (None,)


def test_the_graph_is_followed_again_now_and_then(
    model: TwoHeads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "FOLLOWED_AGAIN", 20)
    hidden, modules = torch.ones(2, 4), ModulesBelow()
    value, head = (
        find_losses(F.mse_loss(each(hidden)[:, 0], torch.ones(2)).grad_fn)
        for each in (model.value, model.lm_head)
    )
    for _ in range(FIRST_MICRO_BATCHES):
        modules.names(value, None)
    seen = [modules.names(head, None) for _ in range(20)]
    assert seen == [("value.2",)] * 4 + [(None,)] * 16


def test_a_parameter_has_no_name_of_a_dropped_one_whose_id_it_got(
    model: TwoHeads, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = module_names.ModuleNames()
    weight = nn.Parameter(torch.ones(2))
    monkeypatch.setattr(module_names, "MOST_READ", 0)
    names._names[id(weight)] = (weakref.ref(model.table), "value.2")
    assert names.of(weight, search=False) is None
    assert names.of(weight, search=False) is None


def named(*modules: str | None, parts: int = 1) -> list[str]:
    """The names of the losses of a window, each over one of these modules."""
    losses = [
        term(8, 0.1, head=head, module=module, coefficient=0.1 * head)
        for head, module in enumerate(modules, 1)
        for _ in range(parts)
    ]
    objectives = facts(record([losses])).objectives
    return sorted(objective_name(each, objectives) for each in objectives)


def test_objectives_are_called_by_their_modules_if_there_are_several() -> None:
    assert named("lm_head") == ["cross entropy"]
    assert named("lm_head", "aux", parts=2) == [
        "cross entropy over `aux`",
        "cross entropy over `lm_head`",
    ]
    assert named("lm_head", "lm_head") == [
        "first cross entropy over `lm_head`",
        "second cross entropy over `lm_head`",
    ]
    assert named(None, "aux") == ["cross entropy over `aux`", "first cross entropy"]
