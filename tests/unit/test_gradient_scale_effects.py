"""How optimizers respond to a factor on their gradients: measured, and compared with the table."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from gradledger.records import Event, Term
from gradledger_monitor.rules import gradient_scale_effects as effects
from helpers.facts import accused, facts, judged, record, term

STEPS = 12
FACTOR = 4.0
SETTLED = 6  # updates after which RAdam divides by its variance, too


def optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    """Every optimizer that torch has, one that a later version adds included."""
    classes = {name: kind for name, kind in vars(torch.optim).items() if inspect.isclass(kind)}
    base = torch.optim.Optimizer
    return {n: k for n, k in classes.items() if issubclass(k, base) and k is not base}


def model() -> nn.Module:
    torch.manual_seed(0)
    # matrices only: Muon takes nothing else
    layers = (nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False))
    return nn.Sequential(*layers).double()


def gradients() -> Iterator[list[torch.Tensor]]:
    """The gradients of a small model that trains, step by step."""
    trained, data = model(), torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        x = torch.randn(16, 6, generator=data, dtype=torch.float64)
        y = torch.randint(0, 3, (16,), generator=data)
        loss = nn.functional.cross_entropy(trained(x), y)
        step_gradients = torch.autograd.grad(loss, list(trained.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(trained.parameters(), step_gradients, strict=True):
                parameter.sub_(0.1 * gradient)
        yield list(step_gradients)


def updates(
    kind: type[torch.optim.Optimizer], factors: list[float], weight_decay: float = 0.0
) -> list[torch.Tensor]:
    """What each step adds to the parameters, its gradients multiplied by its factor."""
    # of AdamW and others, decay does not depend on gradients
    options: dict[str, Any] = {}
    if "weight_decay" in parameters_of(kind):
        options["weight_decay"] = weight_decay
    parameters = list(model().parameters())
    optimizer = kind(parameters, **options)
    steps = []
    for factor, step in zip(factors, gradients(), strict=True):
        before = [parameter.detach().clone() for parameter in parameters]
        for parameter, gradient in zip(parameters, step, strict=True):
            scaled = gradient * factor
            parameter.grad = scaled.to_sparse() if kind is torch.optim.SparseAdam else scaled
        optimizer.step()
        moved = zip(parameters, before, strict=True)
        steps.append(torch.cat([(p.detach() - b).flatten() for p, b in moved]))
    return steps


def parameters_of(kind: type[torch.optim.Optimizer]) -> set[str]:
    return set(inspect.signature(kind).parameters)


def ratios(kind: type[torch.optim.Optimizer], factors: list[float]) -> list[float]:
    """How much longer each update is than without the factors."""
    pairs = zip(updates(kind, [1.0] * STEPS), updates(kind, factors), strict=True)
    return [float(scaled.norm() / plain.norm()) for plain, scaled in pairs]


MEASURED = {name: kind for name, kind in optimizers().items() if name != "LBFGS"}


@pytest.mark.parametrize("name", MEASURED)
def test_the_table_states_what_a_constant_factor_does(name: str) -> None:
    expected = {"proportional": FACTOR, "normalised": 1.0, "sign": 1.0}
    response = effects.optimizer_response(name)
    assert response is not None
    measured = ratios(MEASURED[name], [FACTOR] * STEPS)[SETTLED:]
    # Adadelta divides by a running size to which it adds epsilon, which is not small here
    assert measured == pytest.approx([expected[response]] * len(measured), rel=0.06)


@pytest.mark.parametrize("name", MEASURED)
def test_the_table_states_what_a_factor_in_some_steps_does(name: str) -> None:
    at = STEPS - 3
    factors = [FACTOR if step == at else 1.0 for step in range(STEPS)]
    kind, response = MEASURED[name], effects.optimizer_response(name)
    plain, scaled = updates(kind, [1.0] * STEPS)[at], updates(kind, factors)[at]
    if response == "sign":
        assert torch.equal(plain, scaled)
    elif response == "proportional":
        assert float(scaled.norm() / plain.norm()) == pytest.approx(FACTOR, rel=0.01)
    else:
        assert float((scaled - plain).norm() / plain.norm()) > 0.05


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of arXiv:2302.06675, without weight decay."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.sub_(group["lr"] * (0.9 * momentum + 0.1 * p.grad).sign())
                momentum.lerp_(p.grad, 0.01)


def test_lion_has_no_epsilon_and_a_constant_factor_leaves_every_update_as_it_is() -> None:
    """Not even a factor that would leave nothing of another gradient beside an epsilon."""
    assert effects.optimizer_response("Lion") == "momentum_sign"
    plain, tiny = updates(Lion, [1.0] * STEPS), updates(Lion, [2.0**-60] * STEPS)
    assert all(map(torch.equal, plain, tiny))
    at = STEPS - 3
    changed = updates(Lion, [64.0 if step == at else 1.0 for step in range(STEPS)])
    assert not torch.equal(changed[at], plain[at])
    text = effects.constant_factor_effect(
        0.25, facts(record([term(8, 1 / 8)]), optimizers=["Lion"])
    )
    assert "does not change its updates" in text and "epsilon" not in text


@pytest.mark.parametrize(
    "name", [n for n in MEASURED if "weight_decay" in parameters_of(MEASURED[n])]
)
def test_the_table_states_where_a_factor_changes_the_weight_of_decay(name: str) -> None:
    if effects.optimizer_response(name) != "normalised":
        return
    kind, parts = MEASURED[name], []
    for factor in (1.0, 1 / 64):
        with_decay = updates(kind, [factor] * STEPS, weight_decay=0.5)
        parts.append((with_decay[-1] - updates(kind, [factor] * STEPS)[-1]).norm())
    stays = float(parts[1] / parts[0]) == pytest.approx(1.0, rel=0.05)
    assert stays != effects.adds_decay_to_gradient(name)


def test_of_radam_it_is_stated_that_its_first_updates_cancel_nothing() -> None:
    measured = ratios(torch.optim.RAdam, [FACTOR] * STEPS)
    assert measured[: SETTLED - 1] == pytest.approx([FACTOR] * (SETTLED - 1), rel=0.01)
    assert measured[SETTLED:] == pytest.approx([1.0] * (STEPS - SETTLED), rel=0.06)
    of = facts(record([term(8, 1 / 8)]), optimizers=["RAdam"])
    for text in (effects.constant_factor_effect(4.0, of), effects.changing_factor_effect(of)):
        assert text.startswith("After its first five updates, RAdam cancels")


def lbfgs_update(start: float, factor: float) -> float:
    """How far one step of LBFGS moves two parameters whose loss is multiplied by a factor."""
    parameter = nn.Parameter(torch.tensor([start, -start], dtype=torch.float64))
    optimizer = torch.optim.LBFGS([parameter], lr=0.1, max_iter=1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = factor * (parameter**4).sum()
        loss.backward()
        return float(loss.detach())

    before = parameter.detach().clone()
    optimizer.step(closure)
    return float((parameter.detach() - before).norm())


def test_nothing_is_claimed_of_lbfgs() -> None:
    """It depends on the gradient: an update of a small one grows with the factor."""
    assert effects.optimizer_response("LBFGS") is None
    small, large = (lbfgs_update(s, FACTOR) / lbfgs_update(s, 1.0) for s in (0.2, 20.0))
    assert small == pytest.approx(FACTOR)
    assert large == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "response"),
    [
        ("PagedAdamW8bit", "normalised"),
        ("FusedAdam", "normalised"),
        ("DeepSpeedCPUAdam", "normalised"),
        ("FusedSGD", "proportional"),
        ("SignSGD", None),
        ("MyAdam", None),
        ("SAM", None),
        ("", None),
    ],
)
def test_variants_are_recognised_and_nothing_else_is(name: str, response: str | None) -> None:
    assert effects.optimizer_response(name) == response


# ---------------------------------------------------------------- the words


def summary(optimizer: str, *events: Event, left: float = 1.0) -> str:
    """What is reported of a loss that is not divided by K = 4; clipping leaves so much of it."""
    terms: list[Term] = [term(10, 0.1) for _ in range(4)]
    step = record(terms, events=list(events), post_factor=left)
    evaluation = judged([facts(step, optimizers=[optimizer])])
    assert "reduction.missing_division" in accused(evaluation)
    return next(f.summary for f in evaluation.findings if f.rule == "reduction.missing_division")


@pytest.mark.parametrize("optimizer", ["SGD", "ASGD"])
def test_a_learning_rate_is_claimed_where_updates_follow_the_gradient(optimizer: str) -> None:
    assert "the effective learning rate is 4 times the configured one" in summary(optimizer)


@pytest.mark.parametrize("optimizer", [*MEASURED, "LBFGS", "Unheard"])
def test_and_nowhere_else(optimizer: str) -> None:
    claimed = "the effective learning rate is" in summary(optimizer)
    assert claimed == (effects.optimizer_response(optimizer) == "proportional")


def test_where_nothing_is_known_that_is_stated() -> None:
    assert "How much of a factor of 4 reaches the parameters depends on LBFGS." in summary("LBFGS")
    assert "Rprop uses only the signs of gradients" in summary("Rprop")


def test_clipping_that_engages_is_part_of_the_claim() -> None:
    engaged = Event("clip_norm", after=4, limit=1.0, norm=8.0)
    idle = Event("clip_norm", after=4, limit=100.0, norm=8.0)
    text = "Without clipping, the effective learning rate with SGD would be 4 times"
    assert text in summary("SGD", engaged, left=1.0 / 8.0)
    assert text not in summary("SGD", idle)
    assert text in summary("SGD", Event("clip_value", after=4, limit=0.5))
