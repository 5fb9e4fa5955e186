"""Two optimizers that share a loss, of which one may step more often than the other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.training import accused, cross_entropy, recording, tiny_model, windows

EARLY = "loop.step_every_microbatch"


def train(when: str) -> dict[str, int]:
    """What is reported if the optimizer of the second half steps at these moments."""
    net = tiny_model()
    with recording() as recorded:
        parameters = list(net.parameters())
        slow = torch.optim.SGD(parameters[:-1], lr=0.01)
        fast = torch.optim.SGD(parameters[-1:], lr=0.01)
        for window in windows(6, lengths=[((6, 6),) * 4]):
            for number, batch in enumerate(window):
                if when == "alternately":  # the gradient that the slow one's loss leaves is dropped
                    fast.zero_grad()
                    cross_entropy(net, batch).backward(inputs=parameters[-1:])
                    fast.step()
                    fast.zero_grad()
                (cross_entropy(net, batch) / (1 if when == "divided later" else 4)).backward()
                last = number == 3
                if last and when == "divided later":
                    for parameter in parameters[:-1]:
                        assert parameter.grad is not None
                        parameter.grad /= 4
                if last and when == "slow first":
                    slow.step()
                    slow.zero_grad()
                if when in ("fast first", "slow first", "divided later") or (
                    last and when == "together"
                ):
                    fast.step()
                    fast.zero_grad()
                if last and when != "slow first":
                    slow.step()
                    slow.zero_grad()
    return accused(recorded.evaluation(optimizers=["SGD", "SGD"]))


@pytest.mark.parametrize("when", ["fast first", "slow first"])
def test_an_optimizer_that_steps_on_each_micro_batch_of_another_is_named(when: str) -> None:
    assert EARLY in train(when)


@pytest.mark.parametrize("when", ["together", "alternately", "divided later"])
def test_optimizers_that_step_together_or_on_other_losses_are_left_alone(when: str) -> None:
    assert EARLY not in train(when)


@pytest.mark.parametrize("k", [1, 3])
def test_a_loss_whose_gradients_at_the_critic_are_zeroed_is_not_discarded(k: int) -> None:
    """Both optimizers of a GAN step at the end, the critic's first."""
    torch.manual_seed(0)
    model, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    with recording() as recorded:
        slow = torch.optim.SGD(model.parameters(), lr=0.01)
        fast = torch.optim.SGD(critic.parameters(), lr=0.01)
        for _ in range(4):
            slow.zero_grad()
            for _ in range(k):
                fake = model(torch.randn(6, 4))
                loss = F.binary_cross_entropy_with_logits(critic(fake), torch.ones(6, 1))
                (loss / k).backward()
            fast.zero_grad()
            labels = torch.cat([torch.zeros(6, 1), torch.ones(6, 1)])
            for _ in range(k):
                logits = critic(torch.cat([fake.detach(), torch.randn(6, 4)]))
                (F.binary_cross_entropy_with_logits(logits, labels) / k).backward()
            fast.step()
            slow.step()
    evaluation = recorded.evaluation(optimizers=["SGD", "SGD"])
    assert accused(evaluation) == {}
    assert evaluation.verdict == "balanced"


@pytest.mark.parametrize(("every", "alone"), [(1, [True, False, False]), (3, [True, True, True])])
def test_optimizers_are_alone_until_another_one_steps_between(
    every: int, alone: list[bool]
) -> None:
    net = tiny_model()
    with recording() as recorded:
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.01) for _ in range(2)]
        for number, (batch, *_) in enumerate(windows(6)):
            optimizer = optimizers[number // every % 2]
            optimizer.zero_grad()
            cross_entropy(net, batch).backward()
            optimizer.step()
    for index in range(2):
        assert [record.alone for record in recorded.records(index)] == alone
