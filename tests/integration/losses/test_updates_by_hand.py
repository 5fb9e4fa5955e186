"""Loops without an optimizer of PyTorch: their windows close, and are judged as all others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradledger.capture.by_hand.updates import _Copies
from gradledger.capture.recorder import Recorder
from gradledger_monitor.model.unmeasured import LEFT_OR_ASSIGNED
from helpers.training import (
    Batch,
    Batches,
    Recording,
    accused,
    cross_entropy,
    tiny_model,
    windows,
)
from helpers.training import tokens as tokens_of
from helpers.updates import recorded_to_the_end

DATA = windows(6)
RATE = 0.1
UNEQUAL = "reduction.token_weights_unequal"
Parameters = list[Any]
Loss = Callable[[nn.Module, Batch, Batches], Tensor]


def right(net: nn.Module, batch: Batch, window: Batches) -> Tensor:
    """Each token of the window weighs the same."""
    return cross_entropy(net, batch, reduction="sum") / sum(map(tokens_of, window))


def wrong(net: nn.Module, batch: Batch, window: Batches) -> Tensor:
    """Each micro-batch weighs the same."""
    return cross_entropy(net, batch) / len(window)


# ---------------------------------------------------------------------- updates


@torch.no_grad()
def plain(parameters: Parameters) -> None:
    """The update of every tutorial."""
    for parameter in parameters:
        assert parameter.grad is not None
        parameter -= RATE * parameter.grad


def through_data(parameters: Parameters) -> None:
    """The old style, which moves no version."""
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.data.add_(parameter.grad.data, alpha=-RATE)


@torch.no_grad()
def foreach(parameters: Parameters) -> None:
    """All parameters at once."""
    torch._foreach_add_(parameters, [p.grad for p in parameters], alpha=-RATE)


@torch.no_grad()
def ascent(parameters: Parameters) -> None:
    """A reward is maximised."""
    for parameter in parameters:
        assert parameter.grad is not None
        parameter += 0.01 * parameter.grad


def clipped(parameters: Parameters) -> None:
    """Clipped by norm before the update."""
    nn.utils.clip_grad_norm_(parameters, 0.05)
    plain(parameters)


class Momentum:
    """Heavy-ball momentum."""

    def __init__(self) -> None:
        self.velocities: dict[int, Tensor] = {}

    @torch.no_grad()
    def __call__(self, parameters: Parameters) -> None:
        for index, parameter in enumerate(parameters):
            velocity = self.velocities.setdefault(index, torch.zeros_like(parameter))
            velocity.mul_(0.9).add_(parameter.grad)
            parameter.sub_(RATE * velocity)


class Signs:
    """An update that does not follow the size of the gradient."""

    @torch.no_grad()
    def __call__(self, parameters: Parameters) -> None:
        for parameter in parameters:
            parameter.sub_(0.01 * parameter.grad.sign())


UPDATES: list[Callable[[], Any]] = [
    *(lambda update=update: update for update in (plain, through_data, foreach, ascent, clipped)),
    Momentum,
    Signs,
]


def to_none(parameters: Parameters) -> None:
    """``zero_grad(set_to_none=True)``."""
    for parameter in parameters:
        parameter.grad = None


def to_zero(parameters: Parameters) -> None:
    """``zero_grad(set_to_none=False)``."""
    for parameter in parameters:
        parameter.grad.zero_()


def data_to_zero(parameters: Parameters) -> None:
    """The old style, which moves no version either."""
    for parameter in parameters:
        parameter.grad.data.zero_()


def keep(parameters: Parameters) -> None:
    """Forget to."""


def train(update: Any, loss: Loss, clear: Callable[[Parameters], None] = to_none) -> Recording:
    """K micro-batches for each update."""
    net = tiny_model()
    parameters: Parameters = list(net.parameters())
    with recorded_to_the_end() as recorded:
        for window in DATA:
            for batch in window:
                loss(net, batch, window).backward()
            update(parameters)
            clear(parameters)
    return recorded


# ---------------------------------------------------------------------- right and wrong


@pytest.mark.parametrize("clear", [to_none, to_zero, data_to_zero])
@pytest.mark.parametrize("make", UPDATES)
def test_each_update_closes_a_window_and_no_healthy_one_is_accused(
    make: Callable[[], Any], clear: Callable[[Parameters], None]
) -> None:
    recorded = train(make(), right, clear)
    steps = recorded.facts()
    # the first change along the gradient may be a perturbation: it closes no window
    assert len(steps) == len(DATA) - (make() is ascent)
    assert all(step.ledger is not None for step in steps)
    assert {len(step.record.micro_batches) for step in steps} == {4}
    assert accused(recorded.evaluation()) == {}


@pytest.mark.parametrize("make", UPDATES)
def test_unequal_weights_are_found_whatever_the_update_is(make: Callable[[], Any]) -> None:
    assert list(accused(train(make(), wrong).evaluation())) == [UNEQUAL]


@pytest.mark.parametrize("update", [plain, through_data, foreach, clipped])
def test_a_right_loop_is_balanced(update: Any) -> None:
    assert train(update, right).evaluation().verdict == "balanced"


def test_the_step_size_is_measured() -> None:
    records = train(plain, right).records()
    assert [record.step_size for record in records] == pytest.approx([RATE] * len(DATA), rel=1e-3)
    assert all(record.by_hand for record in records)
    assert [record.step_size for record in train(Momentum(), right).records()][1:] == [None] * 5


def test_a_change_along_the_gradient_has_a_negative_step_size() -> None:
    sizes = [record.step_size for record in train(ascent, right).records()]
    assert sizes == pytest.approx([-0.01] * (len(DATA) - 1), rel=1e-2)


def test_gradients_that_stay_are_found() -> None:
    assert list(accused(train(plain, right, keep).evaluation())) == ["loop.grads_not_zeroed"]


def one_sum_for_each_update(rate: Callable[[int], float]) -> Recording:
    """K = 1, a summed loss, and a learning rate that may divide by the number of tokens."""
    net = tiny_model()
    parameters: Parameters = list(net.parameters())
    with recorded_to_the_end() as recorded:
        for batch, *_ in DATA:
            cross_entropy(net, batch, reduction="sum").backward()
            with torch.no_grad():
                for parameter in parameters:
                    parameter -= rate(tokens_of(batch)) * parameter.grad
                    parameter.grad = None
    return recorded


def test_a_divisor_inside_the_learning_rate_is_a_divisor() -> None:
    evaluation = one_sum_for_each_update(lambda tokens: RATE / tokens).evaluation()
    assert accused(evaluation) == {}
    undivided = one_sum_for_each_update(lambda tokens: 0.001).evaluation()
    assert list(accused(undivided)) == ["reduction.unnormalised_sum"]
    (finding,) = undivided.findings
    assert "the effective learning rate changes" in finding.summary


# ---------------------------------------------------------------------- gradients elsewhere


@pytest.mark.parametrize("loss", [right, wrong])
def test_gradients_summed_in_buffers_of_the_loop(loss: Loss) -> None:
    net = tiny_model()
    parameters: Parameters = list(net.parameters())
    with recorded_to_the_end() as recorded:
        for window in DATA:
            sums = [torch.zeros_like(p) for p in parameters]
            for batch in window:
                loss(net, batch, window).backward()
                for total, parameter in zip(sums, parameters, strict=True):
                    total += parameter.grad
                    parameter.grad = None
            with torch.no_grad():
                for total, parameter in zip(sums, parameters, strict=True):
                    parameter -= RATE * total
    assert all(record.moved for record in recorded.records())
    assert list(accused(recorded.evaluation())) == ([] if loss is right else [UNEQUAL])


def test_gradients_zeroed_for_every_micro_batch() -> None:
    net = tiny_model()
    parameters: Parameters = list(net.parameters())
    with recorded_to_the_end() as recorded:
        for window in DATA:
            for batch in window:
                to_none(parameters)
                wrong(net, batch, window).backward()
            plain(parameters)
    assert list(accused(recorded.evaluation())) == ["loop.zeroed_every_microbatch"]


def functional_loss(weights: Sequence[Tensor], batch: Batch, window: Batches, loss: Loss) -> Tensor:
    """The same model, of tensors that the loop passes."""

    class Model(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return torch.tanh(inputs @ weights[0].T + weights[1]) @ weights[2].T + weights[3]

    return loss(Model(), batch, window)


@pytest.mark.parametrize("loss", [right, wrong])
@pytest.mark.parametrize("through_grad", [True, False])
def test_a_functional_model_is_judged(loss: Loss, through_grad: bool) -> None:
    weights: list[Any] = [p.detach().clone().requires_grad_() for p in tiny_model().parameters()]
    with recorded_to_the_end() as recorded:
        for window in DATA:
            sums = [torch.zeros_like(weight) for weight in weights]
            for batch in window:
                value = functional_loss(weights, batch, window, loss)
                if through_grad:
                    for total, gradient in zip(
                        sums, torch.autograd.grad(value, weights), strict=True
                    ):
                        total += gradient
                else:
                    value.backward()
            if not through_grad:
                sums = [weight.grad for weight in weights]
            weights = [
                (weight - RATE * total).detach().requires_grad_()
                for weight, total in zip(weights, sums, strict=True)
            ]
            del sums
    steps = recorded.facts()
    assert len(steps) == len(DATA) - 1  # the last update replaced what was observed
    assert {len(step.record.micro_batches) for step in steps} == {4}
    evaluation = recorded.evaluation()
    assert (evaluation.verdict, list(accused(evaluation))) == (
        ("balanced", []) if loss is right else ("broken", [UNEQUAL])
    )


@pytest.mark.parametrize("loss", [right, wrong])
def test_gradients_of_autograd_grad_that_an_optimizer_applies(loss: Loss) -> None:
    net = tiny_model()
    parameters: Parameters = list(net.parameters())
    with recorded_to_the_end() as recorded:
        optimizer = torch.optim.SGD(parameters, lr=RATE)
        for window in DATA:
            for batch in window:
                gradients = torch.autograd.grad(loss(net, batch, window), parameters)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    before = parameter.grad
                    parameter.grad = gradient if before is None else before + gradient
            optimizer.step()
            optimizer.zero_grad()
    first, *later = recorded.facts()
    assert first.unmeasured == LEFT_OR_ASSIGNED
    assert all(step.record.post_factor == pytest.approx(1) for step in later)
    expected = ("balanced", []) if loss is right else ("broken", [UNEQUAL])
    evaluation = recorded.evaluation()
    assert (evaluation.verdict, list(accused(evaluation))) == expected


def test_assigned_gradients_that_were_not_computed_here_are_not_judged() -> None:
    net = tiny_model()
    parameters: Parameters = list(net.parameters())
    with recorded_to_the_end() as recorded:
        optimizer = torch.optim.SGD(parameters, lr=RATE)
        for batch, *_ in DATA:
            torch.autograd.grad(cross_entropy(net, batch), parameters)
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
    evaluation = recorded.evaluation()
    assert (evaluation.verdict, accused(evaluation)) == ("incomplete", {})
    assert "the loop assigns the gradients" in str(recorded.facts()[-1].unmeasured)


@pytest.mark.parametrize("loss", [right, wrong])
@pytest.mark.parametrize("clip", [False, True])
def test_master_weights_by_hand_are_judged(loss: Loss, clip: bool) -> None:
    net = tiny_model().to(torch.bfloat16)
    parameters: Parameters = list(net.parameters())
    masters = [p.detach().float().clone().requires_grad_() for p in parameters]
    data = [[(x.to(torch.bfloat16), y) for x, y in window] for window in DATA]
    scale = 128.0
    with recorded_to_the_end() as recorded:
        optimizer = torch.optim.SGD(masters, lr=RATE)
        for window in data:
            for batch in window:
                (loss(net, batch, window) * scale).backward()
            for master, parameter in zip(masters, parameters, strict=True):
                assert parameter.grad is not None
                master.grad = parameter.grad.float() / scale
                parameter.grad = None
            if clip:
                nn.utils.clip_grad_norm_(masters, 0.05)
            optimizer.step()
            with torch.no_grad():
                for master, parameter in zip(masters, parameters, strict=True):
                    parameter.copy_(master)
    evaluation = recorded.evaluation()
    expected = ("balanced", []) if loss is right else ("broken", [UNEQUAL])
    assert (evaluation.verdict, list(accused(evaluation))) == expected


# ---------------------------------------------------------------------- two backwards, two networks


def test_a_perturbation_that_is_taken_back_is_no_update() -> None:
    net = tiny_model()
    parameters: Parameters = list(net.parameters())
    with recorded_to_the_end() as recorded:
        for batch, *_ in DATA:
            cross_entropy(net, batch).backward()
            with torch.no_grad():
                moves = [0.05 * p.grad for p in parameters]
                for parameter, move in zip(parameters, moves, strict=True):
                    parameter += move
            to_none(parameters)
            cross_entropy(net, batch).backward()
            with torch.no_grad():
                for parameter, move in zip(parameters, moves, strict=True):
                    parameter -= move
            plain(parameters)
            to_none(parameters)
    records = recorded.records()
    assert [len(record.micro_batches) for record in records] == [2] * len(DATA)
    assert [record.step_size for record in records] == pytest.approx([RATE] * len(DATA), rel=1e-2)
    evaluation = recorded.evaluation()
    assert (evaluation.verdict, accused(evaluation)) == ("balanced", {})


@pytest.mark.parametrize("detached", [True, False])
def test_two_networks_that_are_updated_in_turn_have_two_ledgers(detached: bool) -> None:
    torch.manual_seed(0)
    generator = nn.Linear(4, 8)
    critic = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    real_label, fake_label = torch.ones(16, 1), torch.zeros(16, 1)
    with recorded_to_the_end() as recorded:
        for _ in range(12):
            fake = generator(torch.randn(16, 4))
            judged = critic(fake.detach() if detached else fake)
            loss = F.binary_cross_entropy_with_logits(critic(torch.randn(16, 8)), real_label)
            (loss + F.binary_cross_entropy_with_logits(judged, fake_label)).backward()
            plain(list(critic.parameters()))
            critic.zero_grad()
            generator.zero_grad()
            fooled = critic(generator(torch.randn(16, 4)))
            F.binary_cross_entropy_with_logits(fooled, real_label).backward()
            plain(list(generator.parameters()))
            critic.zero_grad()
            generator.zero_grad()
    for optimizer in (0, 1):
        assert len(recorded.records(optimizer)) >= 11
        assert all(step.unmeasured is None for step in recorded.facts(optimizer))
    assert accused(recorded.evaluation()) == {}


def test_inner_updates_that_keep_the_graph_are_no_updates() -> None:
    torch.manual_seed(0)
    weights: Parameters = [nn.Parameter(torch.randn(8, 1)), nn.Parameter(torch.zeros(1))]
    with recorded_to_the_end() as recorded:
        for _ in range(6):
            fast: list[Any] = list(weights)
            inputs, target = torch.randn(2, 10, 8), torch.randn(2, 10, 1)
            inner = F.mse_loss(inputs[0] @ fast[0] + fast[1], target[0])
            gradients = torch.autograd.grad(inner, fast, create_graph=True)
            fast = [w - 0.05 * g for w, g in zip(fast, gradients, strict=True)]
            F.mse_loss(inputs[1] @ fast[0] + fast[1], target[1]).backward()
            plain(weights)
            to_none(weights)
    assert [len(record.micro_batches) for record in recorded.records()] == [1] * 6
    assert recorded.evaluation().verdict == "balanced"


# ---------------------------------------------------------------------- what is no update


def test_without_an_update_no_window_closes() -> None:
    net = tiny_model()
    with recorded_to_the_end() as recorded:
        for window in DATA:
            for batch in window:
                cross_entropy(net, batch).backward()
    assert recorded.steps == []


def test_the_renormalised_rows_of_an_embedding_are_no_update() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(20, 8, max_norm=0.5), nn.Linear(8, 8), nn.Linear(8, 5))
    parameters: Parameters = list(net.parameters())
    with recorded_to_the_end() as recorded:
        for _ in range(5):
            for _ in range(3):
                output = net(torch.randint(0, 20, (6,)))
                (F.cross_entropy(output, torch.randint(0, 5, (6,))) / 3).backward()
            plain(parameters)
            to_none(parameters)
    assert [len(record.micro_batches) for record in recorded.records()] == [3] * 5


def test_an_optimizer_that_comes_later_takes_over() -> None:
    net = tiny_model()
    with recorded_to_the_end() as recorded:
        cross_entropy(net, DATA[0][0]).backward()
        net.zero_grad()
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
        for window in DATA:
            for batch in window:
                right(net, batch, window).backward()
            optimizer.step()
            optimizer.zero_grad()
    records = recorded.records()
    assert len(records) == len(DATA) and not any(record.by_hand for record in records)
    assert recorded.evaluation().verdict == "balanced"


# ---------------------------------------------------------------------- the hooks change nothing


def weights_after(train_one: Callable[[], Iterator[Tensor]], hooked: bool) -> list[Tensor]:
    """The weights, with or without the hooks."""
    if not hooked:
        return [weight.detach().clone() for weight in train_one()]
    with recorded_to_the_end() as recorded:
        weights = [weight.detach().clone() for weight in train_one()]
    assert recorded.steps
    return weights


def by_hand(seed: int = 0) -> Iterator[Tensor]:
    """A loop of this file."""
    net, update = tiny_model(seed), Momentum()
    for window in DATA:
        for batch in window:
            right(net, batch, window).backward()
        update(list(net.parameters()))
        to_none(list(net.parameters()))
    yield from net.parameters()


def in_threads() -> Iterator[Tensor]:
    """Two threads train at once, each its own model. Their models are made one after the other."""
    nets, results = [tiny_model(seed) for seed in (1, 2)], []

    def run(net: nn.Module) -> None:
        for window in DATA:
            for batch in window:
                right(net, batch, window).backward()
            plain(list(net.parameters()))
            to_none(list(net.parameters()))

    threads = [threading.Thread(target=run, args=(net,)) for net in nets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for net in nets:
        results += list(net.parameters())
    yield from results


@pytest.mark.parametrize("train_one", [by_hand, in_threads])
def test_the_weights_are_the_same_bits(train_one: Callable[[], Iterator[Tensor]]) -> None:
    without, with_hooks = weights_after(train_one, False), weights_after(train_one, True)
    assert all(torch.equal(a, b) for a, b in zip(without, with_hooks, strict=True))


def test_models_of_the_same_shapes_on_two_threads_are_two_groups() -> None:
    """To read a gradient of the other thread, while PyTorch writes it, can end the process."""
    barrier = threading.Barrier(2)

    def run(net: nn.Module) -> None:
        parameters = list(net.parameters())
        for window in DATA:
            for batch in window:
                barrier.wait()
                right(net, batch, window).backward()
            plain(parameters)
            to_none(parameters)

    recorder = Recorder(lambda step: None)
    recorder.install()
    try:
        threads = [threading.Thread(target=run, args=(tiny_model(seed),)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        groups = recorder.updates_by_hand._groups
        assert len({group.window.thread for group in groups}) == len(groups) == 2
    finally:
        recorder.uninstall()


def test_master_weights_of_another_thread_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same holds for the gradients that a loop copies to them."""
    readers: list[tuple[int | None, int]] = []
    begin, barrier = _Copies.begin_backward, threading.Barrier(2)

    def noting(copies: _Copies) -> None:
        readers.append((copies.window.thread, threading.get_ident()))
        begin(copies)

    monkeypatch.setattr(_Copies, "begin_backward", noting)

    def run(net: nn.Module) -> None:
        parameters = list(net.parameters())
        masters = [p.detach().clone().requires_grad_() for p in parameters]
        optimizer = torch.optim.SGD(masters, lr=RATE)
        for window in DATA:
            for batch in window:
                barrier.wait()
                right(net, batch, window).backward()
            for master, parameter in zip(masters, parameters, strict=True):
                master.grad, parameter.grad = parameter.grad, None
            optimizer.step()
            with torch.no_grad():
                for master, parameter in zip(masters, parameters, strict=True):
                    parameter.copy_(master)
        barrier.wait()  # what a thread that has ended trained with, the other one may read

    with recorded_to_the_end():
        threads = [threading.Thread(target=run, args=(tiny_model(seed),)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({reader for _, reader in readers}) == 2
    assert all(owner == reader for owner, reader in readers)


def test_the_hooks_keep_no_parameter_alive() -> None:
    recorder = Recorder(lambda step: None)
    recorder.install()
    try:
        list(by_hand())
        groups = recorder.updates_by_hand._groups
        assert groups and all(not group.optimizer.parameters for group in groups)
    finally:
        recorder.uninstall()
