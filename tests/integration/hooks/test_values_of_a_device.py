"""Values of a device arrive after the step: what the hooks read early on a CPU, they read late.

Here, the hooks take the CPU for such a device: see ``helpers.device``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from gradledger.capture import async_copy
from gradledger_monitor.ingest import schema
from helpers.device import arrive_late
from helpers.training import (
    Recording,
    accused,
    cross_entropy,
    recording,
    tiny_model,
    tokens,
    windows,
)
from helpers.updates import recorded_to_the_end


@pytest.fixture(autouse=True)
def _late(monkeypatch: pytest.MonkeyPatch) -> None:
    arrive_late(monkeypatch.setattr)
    assert async_copy.Deferred(torch.zeros(2)).has_no_copy  # else the tests show nothing


def _terms(recorded: Recording) -> list[schema.Term]:
    return [t for r in recorded.records() for m in r.micro_batches for t in m.terms]


def test_constants_of_a_loss_are_read() -> None:
    model, counts = tiny_model(), torch.tensor([8.0, 4.0])
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in windows(1)[0]:
            loss = torch.tensor(3.0) * cross_entropy(model, batch) / counts[0] / 2 / counts[1]
            loss.backward()
            counts.add_(4)  # after backward, a loop may write over it
        optimizer.step()
    divisors = [[8 + 4 * each, 2, 4 + 4 * each] for each in range(4)]
    assert [t.divisors for t in _terms(recorded)] == [each[::-1] for each in divisors]
    assert {t.coefficient for t in _terms(recorded)} == {3}
    assert not any(t.undivided for t in _terms(recorded))


def test_a_share_that_is_drawn_for_each_micro_batch_is_an_intended_weight() -> None:
    """As in mixup."""
    model = tiny_model()
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number, window in enumerate(windows(4, lengths=(((4, 4),) * 4,))):
            for index, batch in enumerate(window):
                share = torch.tensor(0.1 + 0.2 * ((number + index) % 4))
                other = (batch[0], batch[1].flip(0))
                mixed = share * cross_entropy(model, batch)
                (mixed + (1 - share) * cross_entropy(model, other)).div(len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert not accused(recorded.evaluation())
    assert {round(float(t.coefficient or 0), 1) for t in _terms(recorded)} == {
        *(0.1, 0.3, 0.5, 0.7),
        0.9,
    }


def test_a_penalty_with_a_weight_on_the_device_is_one_term() -> None:
    """Its parts, one for each parameter, have one weight: the first is enough."""
    model, weight = tiny_model(), torch.tensor(0.01)
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = cross_entropy(model, windows(1)[0][0])
        for parameter in model.parameters():
            loss = loss + weight * parameter.square().sum()
        loss.backward()
        optimizer.step()
    assert sorted(term.penalty for term in _terms(recorded)) == [False, True]


def test_what_many_losses_share_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(flat: torch.Tensor) -> torch.Tensor:
        sizes.append(flat.numel())
        return flat.clone()

    monkeypatch.setattr(async_copy, "_on_the_host", counted)
    shared, other = (async_copy.Deferred(torch.tensor(value)) for value in (2.0, 3.0))
    async_copy.start_copies([shared, other, shared])
    assert sizes == [2]
    assert (shared.value(), other.value()) == (2, 3)


def _to_zero(parameters: Sequence[torch.Tensor]) -> None:
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad.zero_()


def _to_none(parameters: Sequence[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("clear", [_to_zero, _to_none])
def test_updates_by_hand_are_judged(
    clear: Callable[[Sequence[torch.Tensor]], None], right: bool
) -> None:
    model = tiny_model()
    parameters = list(model.parameters())
    with recorded_to_the_end() as recorded:
        for window in windows(6):
            total = sum(map(tokens, window))
            for batch in window:
                summed = cross_entropy(model, batch, reduction="sum")
                (summed / total if right else cross_entropy(model, batch) / 4).backward()
            with torch.no_grad():
                for parameter in parameters:
                    assert parameter.grad is not None
                    parameter.sub_(0.1 * parameter.grad)
            clear(parameters)
    evaluation = recorded.evaluation()
    found = {} if right else {"reduction.token_weights_unequal"}
    assert accused(evaluation).keys() == set(found)
    assert evaluation.verdict == ("balanced" if right else "broken")
