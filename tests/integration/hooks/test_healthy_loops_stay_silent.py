"""Loops that look like a mistake and are none: whatever else they do, no finding."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradledger_monitor.model.chart_metrics import chart_metrics
from helpers.loops import EQUAL, TwoHeads, answer, count, train
from helpers.training import (
    IGNORED,
    Batch,
    Batches,
    accused,
    cross_entropy,
    recording,
    tiny_model,
    windows,
)

# ---------------------------------------------------------------------- what loops do around it


def test_gradients_scaled_after_backward_make_a_sum_right() -> None:
    """As torchtune does it: sum, then divide every gradient by the number of tokens."""

    def divide(model: nn.Module, window: Batches) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(1 / count(window))

    recorded = train(lambda m, b, w: cross_entropy(m, b, reduction="sum"), windows(6), None, divide)
    assert answer(recorded) == ({}, "balanced")
    assert [chart_metrics(f)["balance"] for f in recorded.facts()] == pytest.approx(
        [1] * 6, rel=1e-3
    )


def test_gradients_may_move_to_other_memory_when_they_are_divided() -> None:
    """``grad.data = ...`` replaces the values of a gradient that stays the same object."""

    def divide(model: nn.Module, window: Batches) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.data = parameter.grad.data / len(window)

    recorded = train(lambda m, b, w: cross_entropy(m, b), windows(6, lengths=EQUAL), None, divide)
    assert answer(recorded) == ({}, "balanced")
    assert [f.record.post_factor for f in recorded.facts()] == pytest.approx([1 / 4] * 6)


def test_steps_between_windows_have_no_gradients_to_read() -> None:
    """The views of the gradients are dropped with these; a step without any follows."""
    model = tiny_model()
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in windows(3, lengths=EQUAL):
            for batch in window:
                (cross_entropy(model, batch) / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
            optimizer.step()
    trained = [step.record for step in recorded.facts() if step.record.micro_batches]
    assert [record.post_factor for record in trained] == pytest.approx([1] * 3)


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.25, "incomplete"), (1.0, "balanced")], ids=["divides", "limits"]
)
def test_hooks_of_parameters_may_divide_what_the_loss_does_not(share: float, verdict: str) -> None:
    """What a hook multiplies by is not known; if the loss is right, so is the reduction."""
    model = tiny_model()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: (gradient * share).clamp(-9, 9))

    def loss_of(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
        return cross_entropy(model, batch, reduction="sum") / (count(window) * share)

    assert answer(train(loss_of, windows(6), model)) == ({}, verdict)


@pytest.mark.parametrize("by_hand_too", [False, True], ids=["alone", "after scaling by hand"])
def test_clipping_that_engages_does_not_move_the_balance(by_hand_too: bool) -> None:
    def prepare(model: nn.Module, window: Batches) -> None:
        for parameter in model.parameters():
            if by_hand_too and parameter.grad is not None:
                parameter.grad.mul_(1 / count(window))
        before = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        assert before > 0.01

    def loss_of(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
        loss = cross_entropy(model, batch, reduction="sum")
        return loss if by_hand_too else loss / count(window)

    recorded = train(loss_of, windows(6), None, prepare)
    assert answer(recorded) == ({}, "balanced")
    for fact in recorded.facts():
        assert chart_metrics(fact)["balance"] == pytest.approx(1, rel=1e-3)
        assert chart_metrics(fact)["norm"] == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_checkpointed_loss_is_either_right_or_unmeasured(reentrant: bool) -> None:
    """A read of what checkpointing holds back would make the script's backward raise."""

    def loss_of(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
        inputs = batch[0].clone().requires_grad_()
        loss: Tensor = checkpoint(
            lambda x: cross_entropy(model, (x, batch[1]), reduction="sum"),
            inputs,
            use_reentrant=reentrant,
        )
        return loss / count(window)

    recorded = train(loss_of, windows(4))
    rules, verdict = answer(recorded)
    assert rules == {}
    assert verdict in ("balanced", "incomplete")
    for fact in recorded.facts():
        balance = chart_metrics(fact)["balance"]
        assert balance == pytest.approx(1, rel=1e-3) if fact.unmeasured is None else balance is None


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_model_changes_nothing(reentrant: bool) -> None:
    def loss_of(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
        inputs = batch[0].clone().requires_grad_()
        logits = checkpoint(model, inputs, use_reentrant=reentrant).flatten(0, 1)
        labels = batch[1].flatten()
        return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum") / count(
            window
        )

    assert answer(train(loss_of, windows(4))) == ({}, "balanced")


def test_frozen_parameters_change_nothing() -> None:
    model = tiny_model()
    for parameter in list(model.parameters())[:2]:
        parameter.requires_grad = False
    recorded = train(
        lambda m, b, w: cross_entropy(m, b, reduction="sum") / count(w), windows(4), model
    )
    assert answer(recorded) == ({}, "balanced")


def test_frozen_parameters_that_the_optimizer_holds_change_nothing() -> None:
    model = tiny_model()
    for parameter in list(model.parameters())[:2]:
        parameter.requires_grad = False
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for window in windows(4):
            for batch in window:
                (cross_entropy(model, batch, reduction="sum") / count(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert answer(recorded) == ({}, "balanced")


def test_gradients_that_are_zeroed_in_place_change_nothing() -> None:
    model = tiny_model()
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for window in windows(4):
            optimizer.zero_grad(set_to_none=False)
            for batch in window:
                (cross_entropy(model, batch, reduction="sum") / count(window)).backward()
            optimizer.step()
    assert answer(recorded) == ({}, "balanced")


@pytest.mark.parametrize("zero_first", [True, False])
def test_a_scaler_in_its_right_order_changes_nothing(zero_first: bool) -> None:
    model = tiny_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for window in windows(4):
            if zero_first:
                optimizer.zero_grad()
            for batch in window:
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = cross_entropy(model, batch, reduction="sum") / count(window)
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            if not zero_first:
                optimizer.zero_grad()
    assert answer(recorded) == ({}, "balanced")
    assert [chart_metrics(f)["balance"] for f in recorded.facts()] == pytest.approx(
        [1] * 4, rel=1e-2
    )


def test_a_fused_optimizer_that_unscales_in_its_kernel_changes_nothing() -> None:
    model = tiny_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    with recording() as recorded:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
        for window in windows(4):
            for batch in window:
                loss = cross_entropy(model, batch, reduction="sum") / count(window)
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert answer(recorded) == ({}, "balanced")
    assert [chart_metrics(f)["balance"] for f in recorded.facts()] == pytest.approx(
        [1] * 4, rel=1e-3
    )


class UnscalesInStep(torch.optim.Optimizer):
    """The form of fused optimizers that ``GradScaler`` passes itself to, such as NVIDIA's LAMB."""

    _step_supports_amp_scaling = True

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None, grad_scaler: Any = None) -> None:  # type: ignore[override]
        parameters = self.param_groups[0]["params"]
        infinite = grad_scaler._check_inf_per_device(self)
        if any(float(each) for each in infinite.values()):
            return
        for parameter in parameters:
            parameter.sub_(parameter.grad / grad_scaler.get_scale(), alpha=self.defaults["lr"])


@pytest.mark.filterwarnings("ignore:GradScaler is going to stop passing itself")
@pytest.mark.parametrize("unscaled", [False, True])
def test_an_optimizer_that_gets_the_scaler_unscales_and_skips_by_itself(unscaled: bool) -> None:
    model = tiny_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    with recording() as recorded:
        optimizer = UnscalesInStep(model.parameters())
        for number, window in enumerate(windows(4)):
            for batch in window:
                loss = cross_entropy(model, batch, reduction="sum") / count(window)
                scaler.scale(loss * math.inf if number == 2 else loss).backward()
            if unscaled:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert answer(recorded) == ({}, "balanced")
    records = recorded.records()
    assert [record.skipped for record in records] == [False, False, True, False]
    applied = [f for f, record in zip(recorded.facts(), records, strict=True) if not record.skipped]
    assert [chart_metrics(f)["balance"] for f in applied] == pytest.approx([1] * 3, rel=1e-3)


def test_a_closure_is_a_window_of_its_own() -> None:
    model = tiny_model()
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for window in windows(4):

            def closure(window: Batches = window) -> float:
                optimizer.zero_grad()
                total = 0.0
                for batch in window:
                    loss = cross_entropy(model, batch, reduction="sum") / count(window)
                    loss.backward()
                    total += loss.item()
                return total

            optimizer.step(closure)
    assert answer(recorded) == ({}, "balanced")
    assert [f.micro_batches for f in recorded.facts()] == [4] * 4


@pytest.mark.filterwarnings("ignore:Converting a tensor")  # by the LBFGS of PyTorch 2.8
def test_lbfgs_evaluates_its_closure_many_times() -> None:
    model = tiny_model()
    with recording() as recorded:
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
        for window in windows(3):
            batch = window[2]

            def closure(batch: Batch = batch) -> Tensor:
                optimizer.zero_grad()
                loss = cross_entropy(model, batch)
                loss.backward()
                return loss

            optimizer.step(closure)
    rules, verdict = answer(recorded)
    assert rules == {}
    assert verdict == "balanced"
    assert len(recorded.steps) == 3


@pytest.mark.parametrize(("backwards", "verdict"), [(1, "balanced"), (2, "incomplete")])
def test_a_gan_with_two_optimizers_is_two_tracks(backwards: int, verdict: str) -> None:
    """The maker's backward leaks into the critic's gradients, which are zeroed before their use.

    Two backwards of the critic, of different sizes, may be separate losses, or one.
    """
    torch.manual_seed(0)
    maker, critic = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    criterion = F.binary_cross_entropy_with_logits
    with recording() as recorded:
        for_maker = torch.optim.Adam(maker.parameters(), lr=0.01)
        for_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
        for _ in range(6):
            generated = maker(torch.randn(7, 4))
            for_critic.zero_grad()
            genuine = criterion(critic(torch.randn(5, 8)), torch.ones(5, 1))
            forged = criterion(critic(generated.detach()), torch.zeros(7, 1))
            for loss in [(genuine + forged) / 2] if backwards == 1 else [genuine, forged]:
                loss.backward()
            for_critic.step()
            for_maker.zero_grad()
            criterion(critic(generated), torch.ones(7, 1)).backward()
            for_maker.step()
    assert [f.micro_batches for f in recorded.facts(0)] == [backwards] * 6
    assert [f.micro_batches for f in recorded.facts(1)] == [1] * 6
    assert answer(recorded) == ({}, verdict)


@pytest.mark.parametrize("forged_size", [5, 8])
def test_a_critic_by_wasserstein_has_losses_of_opposite_signs(forged_size: int) -> None:
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    with recording() as recorded:
        optimizer = torch.optim.RMSprop(critic.parameters(), lr=0.01)
        for _ in range(6):
            optimizer.zero_grad()
            (-critic(torch.randn(5, 8)).mean()).backward()
            critic(torch.randn(forged_size, 8)).mean().backward()
            optimizer.step()
    assert answer(recorded) == ({}, "balanced")


@pytest.mark.parametrize("together", [True, False])
def test_two_losses_of_one_backward_each_count(together: bool) -> None:
    model = TwoHeads()
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for window in windows(4):
            for batch in window:
                out, labels = model(batch[0]), batch[1].flatten()
                losses = [
                    F.cross_entropy(head, labels, ignore_index=IGNORED, reduction="sum")
                    for head in (out.first, out.second)
                ]
                share = [loss / count(window) / 2 for loss in losses]
                if together:
                    torch.autograd.backward(share)
                else:
                    sum(share, torch.zeros(())).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert answer(recorded) == ({}, "balanced")


def test_two_optimizers_that_share_one_backward_are_two_right_windows() -> None:
    model = tiny_model()
    halves = list(model.parameters())[:2], list(model.parameters())[2:]
    with recording() as recorded:
        optimizers = [torch.optim.SGD(half, lr=0.01) for half in halves]
        for window in windows(4):
            for batch in window:
                (cross_entropy(model, batch, reduction="sum") / count(window)).backward()
            for optimizer in optimizers:
                optimizer.step()
            model.zero_grad()
    for index in (0, 1):
        assert [chart_metrics(f)["balance"] for f in recorded.facts(index)] == pytest.approx(
            [1] * 4
        )
    assert answer(recorded) == ({}, "balanced")


@pytest.mark.parametrize("trunk_at", [0, 1, 2])
def test_the_optimizers_of_a_trunk_and_its_heads_step_in_any_order(trunk_at: int) -> None:
    """Each loss is the trunk's and one head's, whichever steps first."""
    trunk, heads = nn.Linear(8, 8), [nn.Linear(8, 3) for _ in range(2)]
    with recording() as recorded:
        of_trunk = torch.optim.SGD(trunk.parameters(), lr=0.1)
        of_heads = [torch.optim.SGD(head.parameters(), lr=0.1) for head in heads]
        for _ in range(6):
            x, labels = torch.randn(10, 8), torch.randint(0, 3, (2, 10))
            first, second = (
                F.cross_entropy(head(trunk(x)), y) for head, y in zip(heads, labels, strict=True)
            )
            first.backward()
            if trunk_at:
                of_heads[0].step()
            second.backward()
            steps = [of_heads[1]] if trunk_at else of_heads
            for optimizer in [of_trunk, *steps] if trunk_at < 2 else [*steps, of_trunk]:
                optimizer.step()
            for optimizer in (of_trunk, *of_heads):
                optimizer.zero_grad()
    assert answer(recorded) == ({}, "balanced")


def test_a_discriminator_that_trains_the_generator_leaks_into_its_step() -> None:
    """Both losses are of one kind, and reach both networks."""
    maker, critic = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    criterion, ones = F.binary_cross_entropy_with_logits, torch.ones(7, 1)
    with recording() as recorded:
        for_maker = torch.optim.Adam(maker.parameters(), lr=0.01)
        for_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
        for _ in range(6):
            criterion(critic(maker(torch.randn(7, 4))), ones).backward()
            for_maker.step()
            for_maker.zero_grad()
            for_critic.zero_grad()
            forged = criterion(critic(maker(torch.randn(7, 4))), 1 - ones)  # without detach
            (criterion(critic(torch.randn(7, 8)), ones) + forged).backward()
            for_critic.step()
            for_critic.zero_grad()
    rules, verdict = answer(recorded)
    assert (list(rules), verdict) == (["loop.grads_not_zeroed"], "broken")


def test_backwards_of_the_same_labels_at_several_lines_are_separate_losses() -> None:
    """Of clean and of noisy inputs."""
    torch.manual_seed(0)
    model, k = nn.Linear(8, 3), 4
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            for _ in range(k):
                x, y = torch.randn(10, 8), torch.randint(0, 3, (10,))
                (F.cross_entropy(model(x), y) / k).backward()
                (0.5 * F.cross_entropy(model(x + torch.randn(10, 8)), y) / k).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert answer(recorded) == ({}, "balanced")


def test_a_micro_batch_without_a_single_label_counts_for_nothing() -> None:
    data = windows(4)
    for window in data:
        window[1][1].fill_(IGNORED)
    recorded = train(lambda m, b, w: cross_entropy(m, b, reduction="sum") / count(w), data)
    assert answer(recorded) == ({}, "balanced")
    equal = windows(4, lengths=EQUAL)
    for window in equal:
        window[1][1].fill_(IGNORED)
    recorded = train(lambda m, b, w: cross_entropy(m, b) / (len(w) - 1), equal)  # its loss is NaN
    assert answer(recorded) == ({}, "balanced")


@pytest.mark.parametrize("contract", ["sequence", "sample"])
def test_a_declared_contract_is_taken_at_its_word(contract: str) -> None:
    recorded = train(lambda m, b, w: cross_entropy(m, b) / len(w), windows(4))
    assert accused(recorded.evaluation()) == {"reduction.token_weights_unequal": 1}
    assert accused(recorded.evaluation(contract=contract)) == {}


def test_a_declared_scale_is_taken_at_its_word() -> None:
    recorded = train(lambda m, b, w: cross_entropy(m, b), windows(4, lengths=EQUAL))
    assert accused(recorded.evaluation()) == {"reduction.missing_division": 1}
    assert accused(recorded.evaluation(declared_scale=4.0)) == {}


def test_two_micro_batches_of_a_copied_model_stay_its_own() -> None:
    """A teacher that is a copy has no optimizer: its backward belongs to no window."""
    model = tiny_model()
    teacher = copy.deepcopy(model)
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for window in windows(3):
            for batch in window:
                cross_entropy(teacher, batch).backward()
                (cross_entropy(model, batch, reduction="sum") / count(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert answer(recorded) == ({}, "balanced")
    assert [f.micro_batches for f in recorded.facts()] == [4] * 3
