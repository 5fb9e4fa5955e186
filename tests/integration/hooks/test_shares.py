"""Optimizers that hold a share of a model, or a flat copy of a part of it: ZeRO by hand."""

from __future__ import annotations

import math
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradledger.observers.ranks import flat_copies, shares
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


def train_flat(
    rank: int | None, factor: float = 1.0, dtype: Any = torch.float32, unused: bool = False
) -> Recording:
    """The optimizer steps on a flat copy of the model; ``rank``: of the half of this rank.

    ``unused``: with a parameter that the last window does not use.
    """
    net = tiny_model().to(dtype)
    extra = [nn.Parameter(torch.randn(20, dtype=dtype))] if unused else []
    parameters = [*net.parameters(), *extra]
    size = len(flat(parameters))
    half = slice(0, size) if rank is None else slice(rank * size // 2, (rank + 1) * size // 2)
    master = nn.Parameter(flat(parameters)[half].float())
    with recording() as recorded:
        optimizer = torch.optim.SGD([master], lr=0.1)
        for number, window in enumerate(windows(3)):
            for parameter in parameters:
                parameter.grad = None
            for batch in window:
                loss = cross_entropy(lambda x: net(x.to(dtype)).float(), batch, reduction="sum")
                loss = loss + sum(each.sum() for each in extra if number < 2)
                (loss / sum(map(tokens_of, window))).backward()
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            master.grad = flat(gradients)[half].float() * factor
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
def test_gradients_that_hooks_combine_inside_backward_are_sampled_as_they_arrive(
    tmp_path: Path,
) -> None:
    def combine(parameter: Any) -> None:
        dist.all_reduce(parameter.grad)
        parameter.grad.mul_(3)

    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net = tiny_model()
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(combine)
        with recording() as recorded:
            optimizer = torch.optim.SGD(list(net.parameters())[:1], lr=0.1)
            for first, *_ in windows(3):
                net.zero_grad()
                cross_entropy(net, first).backward()
                torch.autograd.grad(cross_entropy(net, first), list(net.parameters()))
                optimizer.step()
            for number in range(2):  # the gradients of the first are discarded
                net.zero_grad(set_to_none=number == 1)
                cross_entropy(net, first).backward()
            optimizer.step()
    finally:
        dist.destroy_process_group()
    early, *later, discarded = [facts.record for facts in recorded.facts()]
    assert not discarded.own_shares
    assert early.shares is None or not early.own_shares
    for record in later:
        after, applied = shares_of(record)
        pairs = zip(after, applied, strict=True)
        shown = [(a, y) for a, y in pairs if a and not math.isnan(y)]
        assert record.own_shares and len(shown) > 3
        assert [y for _, y in shown] == pytest.approx([3 * a for a, _ in shown])


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
    assert flat_copies._start_of(values, torch.arange(100.0) + 1000) is None
    assert flat_copies._start_of(torch.zeros(40), torch.zeros(100)) is None
    assert flat_copies._start_of(values, torch.cat([torch.zeros(3), values, torch.ones(9)])) == 3
    assert flat_copies._start_of(values, values[17:]) == -17
    changed = values.clone()
    changed[20] = 0.0
    assert flat_copies._start_of(values, changed) is None


@pytest.mark.usefixtures("of_two_ranks")
def test_parameters_whose_memory_is_replaced_by_a_shard_are_not_read() -> None:
    """ZeRO-3 by hand: between the steps, each rank keeps a part of every parameter."""
    net = tiny_model()
    own = list(net.parameters())[::2]
    whole = [parameter.data for parameter in net.parameters()]
    with recording() as recorded:
        optimizer = torch.optim.SGD(own, lr=0.1)
        for window in windows(3):
            net.zero_grad()
            for batch in window:
                for parameter, values in zip(net.parameters(), whole, strict=True):
                    parameter.data = values
                cross_entropy(net, batch).backward()
            for parameter in net.parameters():
                parameter.grad, parameter.data = None, parameter.data.flatten()[:2]
            for parameter in own:
                parameter.grad = torch.ones(2)
            optimizer.step()
    assert [step.record.shares for step in recorded.facts()] == [None] * 3
    assert not any("shares" in step.record.missing for step in recorded.facts())


@pytest.mark.usefixtures("of_two_ranks")
def test_a_model_is_read_on_its_own_thread_alone() -> None:
    """The optimizers of two threads share out one model; only one of them is read."""
    net = tiny_model()
    first, second = list(net.parameters())[::2], list(net.parameters())[1::2]

    def train(parameters: list[Any]) -> None:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        for window in windows(3):
            for batch in window:
                cross_entropy(net, batch).backward(inputs=parameters)
            optimizer.step()

    with recording() as recorded:
        train(first)
        thread = threading.Thread(target=train, args=(second,))
        thread.start()
        thread.join()
    assert all(record.shares is not None for record in recorded.records(0))
    assert all(record.shares is None for record in recorded.records(1))


@pytest.mark.usefixtures("of_two_ranks")
def test_nothing_is_read_any_more_where_no_optimizer_holds_a_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, other = tiny_model(), nn.Parameter(torch.ones(3))
    read = []
    original = shares._Coordinates.gradients

    def gradients(coordinates: Any) -> Any:
        read.append(coordinates)
        return original(coordinates)

    monkeypatch.setattr(shares._Coordinates, "gradients", gradients)
    with recording():
        optimizer = torch.optim.SGD([other], lr=0.1)
        for window in windows(shares.MOST_SEARCHES + 3):
            cross_entropy(net, window[0]).backward()
            other.grad = torch.ones(3)
            optimizer.step()
    assert len(read) == shares.MOST_SEARCHES + 1


def test_an_unused_parameter_has_no_gradient_in_a_flat_copy() -> None:
    *_, step = train_flat(None, 0.25, unused=True).facts()
    assert step.record.post_factor == pytest.approx(0.25)
    assert [m.fresh for m in step.record.micro_batches] == [True, False, False, False]
    assert step.ledger is not None
    assert step.ledger.balance == pytest.approx(0.25)


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_piece_is_divided_among_the_copies_that_hold_its_parts(cut: int) -> None:
    values = torch.randn(20)
    leaf, low, high = (nn.Parameter(t) for t in (values, values[:cut], values[cut:]))
    piece = shares._Piece(0, weakref.ref(leaf), 20, 1, 3, 7)
    parts = list(shares._parts(piece, [(high, -cut), (low, 0)]))
    copies = [copy.view(copy.parameter()) for _, copy in parts]
    assert torch.equal(torch.cat([c for c in copies if c is not None]), values[1::3])
