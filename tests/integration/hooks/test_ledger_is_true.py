"""The table of what loops do (DESIGN section 2): real loops, judged, and each number proved.

Every row trains for six windows of unequal token counts. The weights, the balance, the
misallocation and both losses are compared with the applied gradient itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from gradledger_monitor.model.chart_metrics import chart_metrics
from helpers.training import (
    Batches,
    Recording,
    Truth,
    Witness,
    accused,
    assert_ledger_is_true,
    cross_entropy,
    recording,
    tiny_model,
    tokens,
    windows,
)

Accumulate = Callable[[nn.Module, Batches], list[float]]  # gives the losses that it backpropagates
K = 4


def sum_over_n(model: nn.Module, window: Batches) -> list[float]:
    """Right."""
    count = sum(map(tokens, window))
    return [_add(cross_entropy(model, batch, reduction="sum") / count) for batch in window]


def weighted_means(model: nn.Module, window: Batches) -> list[float]:
    """Right: each mean counts by its tokens."""
    count = sum(map(tokens, window))
    return [_add(cross_entropy(model, batch) * tokens(batch) / count) for batch in window]


def mean_of_means(model: nn.Module, window: Batches) -> list[float]:
    """The classic."""
    return [_add(cross_entropy(model, batch) / len(window)) for batch in window]


def undivided(model: nn.Module, window: Batches) -> list[float]:
    """The division by K is forgotten."""
    return [_add(cross_entropy(model, batch)) for batch in window]


def divided_twice(model: nn.Module, window: Batches) -> list[float]:
    """The trainer divides by K, and so does the script."""
    return [_add(cross_entropy(model, batch) / K / K) for batch in window]


def normalised_and_divided(model: nn.Module, window: Batches) -> list[float]:
    """The loss already divides by the window's tokens, and the trainer divides by K."""
    count = sum(map(tokens, window))
    return [_add(cross_entropy(model, batch, reduction="sum") / count / K) for batch in window]


def sum_alone(model: nn.Module, window: Batches) -> list[float]:
    """Never divided."""
    return [_add(cross_entropy(model, batch, reduction="sum")) for batch in window]


def divided_by_usual_k(model: nn.Module, window: Batches) -> list[float]:
    """A mean over equal micro-batches, divided by K however many there are."""
    return [_add(cross_entropy(model, batch) / K) for batch in window]


def _add(loss: torch.Tensor) -> float:
    loss.backward()
    return float(loss.detach())


@dataclass
class Trained:
    """A training that was watched from both sides."""

    model: nn.Module
    witness: Witness
    recorded: Recording
    windows: list[Batches]
    losses: list[list[float]] = field(default_factory=list)

    def truth(self, index: int) -> Truth:
        """The truth about a window, from the witness."""
        return Truth.of(self.model, self.witness.steps[index], self.windows[index])


def train(accumulate: Accumulate, data: list[Batches], learning_rate: float = 0.1) -> Trained:
    """The usual loop."""
    model = tiny_model()
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
        done = Trained(model, Witness(model, optimizer), recorded, data)
        for window in data:
            done.losses.append(accumulate(model, window))
            optimizer.step()
            optimizer.zero_grad()
    return done


def assert_every_step_is_true(done: Trained) -> None:
    """The ledger of every window, and the loss that the loop reported."""
    facts = done.recorded.facts()
    assert [f.step for f in facts] == list(range(1, len(done.windows) + 1))
    for index, fact in enumerate(facts):
        assert_ledger_is_true(fact, done.truth(index))
        assert fact.loss_reported == pytest.approx(sum(done.losses[index]), rel=1e-5)


UNEQUAL = "reduction.token_weights_unequal"
MISSING, TWICE = "reduction.missing_division", "reduction.double_division"
SUM = "reduction.unnormalised_sum"

ROWS = [
    # accumulate, the rules that must be named (and no other) with their steps, true balance
    pytest.param(sum_over_n, {}, lambda n: 1, id="right: sum / N"),
    pytest.param(weighted_means, {}, lambda n: 1, id="right: mean * n_k / N"),
    pytest.param(mean_of_means, {UNEQUAL: 1}, lambda n: 1, id="mean of means"),
    pytest.param(undivided, {MISSING: 1, UNEQUAL: 1}, lambda n: K, id="division forgotten"),
    pytest.param(divided_twice, {TWICE: 1, UNEQUAL: 1}, lambda n: 1 / K, id="divided twice"),
    pytest.param(
        normalised_and_divided, {TWICE: 1}, lambda n: 1 / K, id="normalised, and divided again"
    ),
    pytest.param(sum_alone, {SUM: 1}, lambda n: n, id="summed, never divided"),
]


@pytest.mark.parametrize(("accumulate", "named", "balance"), ROWS)
def test_each_way_to_reduce_is_measured_and_named(
    accumulate: Accumulate, named: dict[str, int], balance: Callable[[int], float]
) -> None:
    done = train(accumulate, windows(6), learning_rate=0.01)
    assert_every_step_is_true(done)
    for fact, window in zip(done.recorded.facts(), done.windows, strict=True):
        assert fact.ledger is not None
        assert fact.ledger.balance == pytest.approx(balance(sum(map(tokens, window))), rel=1e-4)
    assert accused(done.recorded.evaluation()) == named


EQUAL = (((4, 4), (3, 5), (7, 1), (6, 2)),)


def test_a_short_last_window_divided_by_the_usual_k_is_named_where_it_happens() -> None:
    data = windows(6, lengths=EQUAL)
    data[2], data[5] = data[2][:1], data[5][:3]
    done = train(divided_by_usual_k, data)
    assert_every_step_is_true(done)
    balances = [chart_metrics(fact)["balance"] for fact in done.recorded.facts()]
    assert balances == pytest.approx([1, 1, 1 / 4, 1, 1, 3 / 4], rel=1e-4)
    assert accused(done.recorded.evaluation()) == {"reduction.partial_window": 3}


def test_a_short_last_window_handled_right_is_not_reported() -> None:
    data = windows(6, lengths=EQUAL)
    data[2], data[5] = data[2][:1], data[5][:3]
    done = train(mean_of_means, data)
    assert_every_step_is_true(done)
    assert accused(done.recorded.evaluation()) == {}


def test_equal_token_counts_make_the_mean_of_means_right() -> None:
    done = train(mean_of_means, windows(6, lengths=EQUAL))
    assert_every_step_is_true(done)
    evaluation = done.recorded.evaluation()
    assert (accused(evaluation), evaluation.verdict) == ({}, "balanced")


def test_a_step_for_every_micro_batch_that_is_divided_all_the_same_is_named() -> None:
    data = [[batch] for window in windows(2) for batch in window]
    done = train(divided_by_usual_k, data)
    assert_every_step_is_true(done)
    assert accused(done.recorded.evaluation()) == {"loop.step_every_microbatch": 2}


def test_steps_on_scaled_gradients_have_the_scale_as_their_balance() -> None:
    """The scaler is bypassed: backward is scaled, step is not."""
    model = tiny_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    data = windows(4)
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        done = Trained(model, Witness(model, optimizer), recorded, data)
        for window in data:
            count = sum(map(tokens, window))
            for batch in window:
                loss = cross_entropy(model, batch, reduction="sum") / count
                scaler.scale(loss).backward()
            optimizer.step()
            optimizer.zero_grad()
    for index, fact in enumerate(recorded.facts()):
        truth = done.truth(index)
        assert truth.balance == pytest.approx(1024, rel=1e-3)
        assert_ledger_is_true(fact, truth)
        assert chart_metrics(fact)["scale"] == 1024
    assert accused(recorded.evaluation()) == {"scaler.step_bypassed": 1}


@pytest.mark.parametrize("scale", [1.0, 64.0])
@pytest.mark.parametrize("clipped_first", [False, True])
@pytest.mark.parametrize("normalised", [False, True])
def test_a_clip_by_value_leaves_the_ledger_of_the_gradients_before_it(
    scale: float, clipped_first: bool, normalised: bool
) -> None:
    """Each value is limited, so that no one number is between backward and the step."""
    model, norms = tiny_model(), []
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for window in windows(3):
            count = sum(map(tokens, window)) if normalised else 1
            for batch in window:
                loss = cross_entropy(model, batch, reduction="sum") / count
                (loss * scale).backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            if clipped_first:
                nn.utils.clip_grad_value_(model.parameters(), 1e-3)
            for gradient in gradients:
                gradient.div_(scale)
            if not clipped_first:
                nn.utils.clip_grad_value_(model.parameters(), 1e-3)
            norms.append(float(nn.utils.get_total_norm(gradients)))
            optimizer.step()
            optimizer.zero_grad()
    for window, norm, facts in zip(windows(3), norms, recorded.facts(), strict=True):
        assert facts.ledger is not None
        balance = 1.0 if normalised else sum(map(tokens, window))
        assert facts.ledger.balance == pytest.approx(balance, rel=1e-3)
        assert facts.ledger.misallocation == pytest.approx(0, abs=1e-3)
        assert facts.norm == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("before", [0, 30, 60])
def test_a_loss_that_uses_few_of_many_parameters_is_measured(before: int) -> None:
    model, seen = tiny_model(), Recording()
    unused = [nn.Linear(2, 2) for _ in range(60)]
    parts = nn.ModuleList([*unused[:before], model, *unused[before:]])
    with recording(seen):
        optimizer = torch.optim.SGD(parts.parameters(), lr=0.1)
        witness = Witness(model, optimizer)
        for window in windows(3):
            sum_over_n(model, window)
            optimizer.step()
            optimizer.zero_grad()
    for facts, applied, window in zip(seen.facts(), witness.steps, windows(3), strict=True):
        assert_ledger_is_true(facts, Truth.of(model, applied, window))
