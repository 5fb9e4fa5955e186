"""Loops that step, accumulate or normalise in their own way: the same bits, the right answer."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradledger.observers.losses import autograd_graph, loss_terms
from helpers.loops import Loop, answer, count, run_twice, share
from helpers.training import Batches, cross_entropy, recording, tiny_model, tokens, windows

STEPS = 8
UNEQUAL = "reduction.token_weights_unequal"


def torchtune(model: nn.Module, data: list[Batches]) -> None:
    """Gradients are divided by the number of tokens after the last backward, then clipped."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for window in data:
        for batch in window:
            (cross_entropy(model, batch) * tokens(batch)).backward()
        scaler = torch.tensor(1 / count(window))
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad *= scaler
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def torchtitan(model: nn.Module, data: list[Batches]) -> None:
    """A sum over tokens, divided by the valid tokens of all micro-batches, known beforehand."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for window in data:
        optimizer.zero_grad()
        valid = torch.tensor(sum(map(tokens, window)), dtype=torch.float32)
        losses = []
        for batch in window:
            loss = cross_entropy(model, batch, reduction="sum") / valid
            loss.backward()
            losses.append(loss.detach())
        torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        nn.utils.clip_grad_norm_(model.parameters(), 0.3, foreach=True)
        optimizer.step()


def two_backwards(model: nn.Module, data: list[Batches]) -> None:
    """A loss and a penalty, each with its own backward."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for window in data:
        for batch in window:
            share(model, batch, window).backward()
            (0.01 * model(batch[0]).square().mean() / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


def gan(model: nn.Module, data: list[Batches], zeroes: bool = True) -> None:
    """Two optimizers; the generator's backward leaves gradients in the critic."""
    critic = nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 1))
    of_model = torch.optim.Adam(model.parameters(), lr=1e-3)
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for window in data:
        inputs = torch.cat([inputs.flatten(0, 1) for inputs, _ in window])
        real, generated = torch.randn(len(inputs), 7), model(inputs)
        ones, zeros = torch.ones(len(inputs), 1), torch.zeros(len(inputs), 1)
        if zeroes:
            of_critic.zero_grad()
        real_loss = F.binary_cross_entropy_with_logits(critic(real), ones)
        (
            real_loss + F.binary_cross_entropy_with_logits(critic(generated.detach()), zeros)
        ).backward()
        of_critic.step()
        of_model.zero_grad()
        F.binary_cross_entropy_with_logits(critic(generated), ones).backward()
        of_model.step()


def lbfgs(model: nn.Module, data: list[Batches], zeroes: bool = True) -> None:
    """One step calls its closure many times."""
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    for window in data:

        def closure(window: Batches = window) -> float:
            if zeroes:
                optimizer.zero_grad()
            total = 0.0
            for batch in window:
                loss = share(model, batch, window)
                loss.backward()
                total += loss.item()
            return total

        optimizer.step(closure)


def sharpness_aware(model: nn.Module, data: list[Batches]) -> None:
    """SAM: the gradients of the first pass only determine where the second pass takes its own."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for window in data:
        for batch in window:
            share(model, batch, window).backward()
        moves = [0.05 * p.grad for p in model.parameters() if p.grad is not None]
        _move(model, moves, 1)
        optimizer.zero_grad()
        for batch in window:
            share(model, batch, window).backward()
        _move(model, moves, -1)
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def _move(model: nn.Module, moves: list[Tensor], sign: int) -> None:
    for parameter, move in zip(model.parameters(), moves, strict=True):
        parameter.add_(move, alpha=sign)


def in_backward(model: nn.Module, data: list[Batches]) -> None:
    """Each parameter is stepped by a hook as soon as its gradient is there."""
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.01)

        def step(_: Tensor, optimizer: torch.optim.SGD = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    for window in data:
        for batch in window:
            cross_entropy(model, batch).backward()


def one_backward(model: nn.Module, data: list[Batches]) -> None:
    """K forwards, whose losses are added up before the one backward."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for window in data:
        torch.stack([share(model, batch, window) for batch in window]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def one_backward_of_means(model: nn.Module, data: list[Batches]) -> None:
    """The same with the old mistake."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for window in data:
        torch.stack([cross_entropy(model, batch) for batch in window]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def accumulated_norms(model: nn.Module, data: list[Batches]) -> None:
    """A penalty on the gradient: autograd.grad with a graph, inside the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for window in data:
        for batch in window:
            loss = share(model, batch, window)
            slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            (loss + 0.01 * torch.stack([s.square().sum() for s in slopes]).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()


def mean_over_a_dimension(model: nn.Module, data: list[Batches]) -> None:
    """A regression whose mean names its dimension from the end."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for window in data:
        model(window[0][0]).square().flatten().mean(-1).backward()
        optimizer.step()
        optimizer.zero_grad()


def own_buffers_clipped_by_value(model: nn.Module, data: list[Batches]) -> None:
    """Gradients are added up in the loop's own tensors, and clipped by value where they step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for window in data:
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for batch in window:
            optimizer.zero_grad()
            share(model, batch, window).backward()
            for kept, parameter in zip(sums, model.parameters(), strict=True):
                assert parameter.grad is not None
                kept += parameter.grad
        for kept, parameter in zip(sums, model.parameters(), strict=True):
            parameter.grad = kept
        nn.utils.clip_grad_value_(model.parameters(), 1e-3)
        optimizer.step()


def episodes(model: nn.Module, data: list[Batches]) -> None:
    """REINFORCE: the loss of an episode is a list of products, whose signs are the returns'."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for window in data:
        for inputs, _ in window:
            logits = model(inputs).flatten(0, 1)[:6]
            steps = [torch.distributions.Categorical(logits=row) for row in logits]
            chosen = [step.log_prob(step.sample()) for step in steps]
            returns = torch.linspace(-1.0, 1.5, len(chosen)) + inputs.mean()
            losses = [-each * amount for each, amount in zip(chosen, returns, strict=True)]
            (torch.stack(losses).sum() / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


def divided_between(model: nn.Module, data: list[Batches]) -> None:
    """A mistake: the gradients are divided by K inside the loop over the micro-batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for window in data:
        for batch in window:
            share(model, batch, window).backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad /= len(window)
        optimizer.step()
        optimizer.zero_grad()


RIGHT: list[Loop] = [
    own_buffers_clipped_by_value,
    episodes,
    torchtune,
    torchtitan,
    two_backwards,
    gan,
    lbfgs,
    sharpness_aware,
    in_backward,
    one_backward,
    accumulated_norms,
    mean_over_a_dimension,
]
WRONG: list[Loop] = [one_backward_of_means]


@pytest.mark.parametrize("loop", RIGHT)
def test_a_right_loop_ends_in_the_same_bits_and_is_balanced(loop: Loop) -> None:
    recorded = run_twice(loop)
    assert len(recorded.steps) >= STEPS
    assert answer(recorded) == ({}, "balanced")


@pytest.mark.parametrize("loop", WRONG)
def test_a_mean_of_means_ends_in_the_same_bits_and_is_named(loop: Loop) -> None:
    recorded = run_twice(loop)
    assert len(recorded.steps) == STEPS
    assert answer(recorded) == ({UNEQUAL: 1}, "broken")


@pytest.mark.parametrize(
    ("loop", "optimizers"),
    [(partial(gan, zeroes=False), ["Adam"] * 2), (partial(lbfgs, zeroes=False), ["LBFGS"])],
    ids=["gan", "lbfgs"],
)
def test_the_fix_is_what_the_right_loop_does_where_zeroing_after_the_step_is_too_late(
    loop: Loop, optimizers: list[str]
) -> None:
    evaluation = run_twice(loop).evaluation(optimizers=optimizers)
    findings = [f for f in evaluation.findings if f.rule == "loop.grads_not_zeroed"]
    assert findings
    for finding in findings:
        assert "at the start of the closure" in finding.fix
        assert "after those of other losses" in finding.fix
        assert "optimizer.zero_grad(" in finding.fix and "step()\n" not in finding.fix


def test_a_closure_that_adds_to_the_evaluation_before_is_named() -> None:
    """The loop zeroes before the step, so that each window begins without gradients."""

    def zeroed_outside(model: nn.Module, data: list[Batches]) -> None:
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
        for window in data:
            optimizer.zero_grad()

            def closure(batch: tuple[Tensor, Tensor] = window[0]) -> Tensor:
                loss = cross_entropy(model, batch)
                loss.backward()
                return loss

            optimizer.step(closure)

    recorded = run_twice(zeroed_outside)
    step = recorded.records()[1]
    assert step.closure
    changed = [m.parameters_changed for m in step.micro_batches]
    assert len(changed) > 1 and changed == [False] + [True] * (len(changed) - 1)
    (finding,) = recorded.evaluation(optimizers=["LBFGS"]).findings
    assert finding.title == "Gradients are not zeroed in the closure"


def test_the_normalised_gradient_has_the_true_balance() -> None:
    """torchtune: every token weighs 1, then all are divided by their number and clipped."""
    recorded = run_twice(torchtune)
    for facts, window in zip(recorded.facts(), windows(STEPS), strict=True):
        assert facts.ledger is not None
        assert facts.ledger.tokens == count(window)
        assert facts.ledger.balance == pytest.approx(1.0, rel=1e-4)


def test_what_a_loop_divides_between_two_backwards_is_a_part_of_the_weights() -> None:
    recorded = run_twice(divided_between)
    for facts, window in zip(recorded.facts(), windows(STEPS), strict=True):
        assert facts.ledger is not None
        k = len(window)
        shares = [each.weight * count(window) for each in facts.ledger.entries]
        assert shares == pytest.approx([k ** (index - k) for index in range(k)], rel=1e-3)
    assert UNEQUAL in answer(recorded)[0]


def test_a_graph_that_is_too_large_to_search_shows_no_losses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that the search did not reach may be the heaviest: the others are no whole loss."""

    def detector(scales: int) -> tuple[list[str], str | None]:
        boxes = torch.rand(scales, 6, 4, requires_grad=True)
        with recording() as recorded:
            optimizer = torch.optim.SGD([boxes], lr=0.0)
            loss = torch.zeros(())
            for each in boxes:
                loss = loss + (1 - _overlap(each)).mean() + F.mse_loss(each, each * 0)
            loss.backward()
            optimizer.step()
        (micro_batch,) = recorded.records()[0].micro_batches
        return [term.kind for term in micro_batch.terms], micro_batch.missing.get("terms")

    kinds, missing = detector(scales=3)
    assert missing is None and sorted(kinds) == ["MeanBackward0"] * 3 + ["MseLossBackward0"] * 3
    monkeypatch.setattr(autograd_graph, "MAX_NODES", 64)
    kinds, missing = detector(scales=3)
    assert kinds == [] and missing is not None and "nodes" in missing


def _overlap(boxes: Tensor) -> Tensor:
    """Of a complete IoU: functions of functions of coordinates, some of them shared."""
    x, y, w, h = boxes.sigmoid().unbind(1)
    area, angle = w * h, torch.atan(w / h)
    iou = area / (1 + area - x * y)
    return iou - ((x - 0.5) ** 2 + (y - 0.5) ** 2) / (w**2 + h**2) - angle * (angle - iou) ** 2


def test_more_losses_than_can_be_followed_are_named_as_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of several roots, a later one may have few: the others are lost all the same."""
    monkeypatch.setattr(loss_terms, "MAX_TERMS", 3)
    model = nn.Linear(8, 7)
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        losses = [cross_entropy(model, batch) for batch in windows(2)[0] + windows(2)[1]]
        first, second = torch.stack(losses[:4]).sum(), torch.stack(losses[4:6]).sum()
        torch.autograd.backward([first, second])
        optimizer.step()
    (record,) = recorded.records()
    assert record.micro_batches[0].terms == []
    assert record.micro_batches[0].missing["terms"] == loss_terms.TOO_MANY


def test_zeros_for_absent_gradients_leave_the_samples_of_a_window_alone() -> None:
    model, unused = tiny_model(), nn.Linear(2, 2)
    norms = []
    for fill in (False, True):
        torch.manual_seed(0)
        with recording() as recorded:
            optimizer = torch.optim.SGD([*model.parameters(), *unused.parameters()], lr=0.0)
            for window in windows(2):
                for batch in window:
                    (cross_entropy(model, batch) / len(window)).backward()
                for parameter in unused.parameters() if fill else ():
                    parameter.grad = torch.zeros_like(parameter)
                optimizer.step()
                optimizer.zero_grad()
        records = recorded.records()
        assert all(record.post_factor == 1.0 and record.noise for record in records)
        norms.append([m.sample_norm for record in records for m in record.micro_batches])
    assert norms[0] == norms[1] and None not in norms[0]
