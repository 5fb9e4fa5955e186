"""Optimizers that hold a share of a model, or a flat copy of a part of it: ZeRO by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradledger.observers.ranks import shares
from gradledger_monitor.ingest.schema import StepRecord
from helpers.training import Recording, cross_entropy, recording, tiny_model, windows
from helpers.training import tokens as tokens_of

RANKS = 2


@pytest.fixture
def of_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is one of two."""
    monkeypatch.setattr(shares, "world_size", lambda: RANKS)


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def train_flat(rank: int | None, factor: float = 1.0, dtype: Any = torch.float32) -> Recording:
    """The optimizer steps on a flat copy of the model; ``rank``: of the half of this rank."""
    net = tiny_model().to(dtype)
    parameters = list(net.parameters())
    size = len(flat(parameters))
    half = slice(0, size) if rank is None else slice(rank * size // 2, (rank + 1) * size // 2)
    master = nn.Parameter(flat(parameters)[half].float())
    with recording() as recorded:
        optimizer = torch.optim.SGD([master], lr=0.1)
        for window in windows(3):
            net.zero_grad()
            for batch in window:
                loss = cross_entropy(lambda x: net(x.to(dtype)).float(), batch, reduction="sum")
                (loss / sum(map(tokens_of, window))).backward()
            master.grad = flat(p.grad for p in parameters)[half].float() * factor
            optimizer.step()
            whole = flat(parameters)
            whole[half] = master.detach().to(whole.dtype)
            nn.utils.vector_to_parameters(whole, parameters)
    return recorded


def shares_of(record: StepRecord) -> tuple[list[float], list[float]]:
    sent = record.shares
    assert sent is not None
    assert math.isfinite(float(record.shared_model or math.nan))
    return list(map(float, sent.after_backward)), list(map(float, sent.at_step))


@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_a_flat_copy_of_the_whole_model_shows_what_its_gradient_was_multiplied_by(
    factor: float,
) -> None:
    first, *later = train_flat(None, factor).facts()
    assert first.ledger is None  # what the optimizer holds is looked for after its first step
    for step, window in zip(later, windows(3)[1:], strict=True):
        assert step.record.post_factor == pytest.approx(factor)
        assert step.ledger is not None
        assert [e.tokens for e in step.ledger.entries] == list(map(tokens_of, window))
        assert step.ledger.balance == pytest.approx(factor)


def test_master_weights_in_fp32_of_a_model_in_bf16_are_copies_too() -> None:
    for step in train_flat(None, 0.5, torch.bfloat16).facts()[1:]:
        assert step.ledger is not None
        assert step.ledger.balance == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.usefixtures("of_two_ranks")
def test_a_shard_is_compared_where_it_has_the_parameters_of_the_model(rank: int) -> None:
    records = [step.record for step in train_flat(rank, 0.25).facts()]
    assert len(records) == 3
    for record in records:
        before, applied = shares_of(record)
        held = [(b, a) for b, a in zip(before, applied, strict=True) if not math.isnan(a)]
        assert len(held) >= len(before) // 4
        assert len(held) < len(before)
        assert [a for _, a in held] == pytest.approx([0.25 * b for b, _ in held])
        assert all(map(math.isfinite, before))


@pytest.mark.usefixtures("of_two_ranks")
def test_parameters_of_other_ranks_are_sampled_where_the_optimizer_holds_some() -> None:
    net = tiny_model()
    own = list(net.parameters())[::2]
    with recording() as recorded:
        optimizer = torch.optim.SGD(own, lr=0.1)
        for window in windows(3):
            net.zero_grad()
            for batch in window:
                cross_entropy(net, batch).backward()
            for parameter in own:
                assert parameter.grad is not None
                parameter.grad *= 3
            optimizer.step()
    for step in recorded.facts():
        before, applied = shares_of(step.record)
        held = [(b, a) for b, a in zip(before, applied, strict=True) if not math.isnan(a)]
        assert 0 < len(held) < len(before)
        assert [a for _, a in held] == pytest.approx([3 * b for b, _ in held])


@pytest.mark.usefixtures("of_two_ranks")
def test_a_rank_that_holds_all_parameters_sends_none() -> None:
    net = tiny_model()
    with recording() as recorded:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for window in windows(2):
            for batch in window:
                cross_entropy(net, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(step.record.shares is None for step in recorded.facts())


def test_other_values_are_no_copy() -> None:
    values = torch.arange(40.0)
    assert shares._start_of(values, torch.arange(100.0) + 1000) is None
    assert shares._start_of(torch.zeros(40), torch.zeros(100)) is None
    assert shares._start_of(values, torch.cat([torch.zeros(3), values, torch.ones(9)])) == 3
    assert shares._start_of(values, values[17:]) == -17
    changed = values.clone()
    changed[20] = 0.0
    assert shares._start_of(values, changed) is None
