"""Losses of one backward that reach different optimizers: each counts where its gradient is."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gradledger.observers.losses import reached_optimizers
from helpers.training import Recording, accused, recording

K, WINDOWS = 4, 4
BODY, HEAD = "MseLossBackward0", "NllLossBackward0"
Run = Callable[[nn.Module, Tensor], Tensor]


class Note:
    """Lives as long as the node that it is attached to."""


class Halves(torch.autograd.Function):
    """Two outputs; what their gradients reach is not visible in the graph."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return hidden.clone(), hidden.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0]  # of the first alone


class Model(nn.Module):
    """A body with a reconstruction, and a classifier on what the body computes."""

    def __init__(self, run: Run, detached: bool = True, opaque: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))
        self.head = nn.Linear(6, 5)
        self.run, self.detached, self.opaque = run, detached, opaque

    def losses(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.run(self.body, x)
        features = hidden
        if self.opaque:
            hidden, features = Halves.apply(hidden)  # type: ignore[no-untyped-call]
        elif self.detached:
            features = hidden.detach()
        return F.mse_loss(hidden, x.detach()), F.cross_entropy(self.head(features), y)


def plain(body: nn.Module, x: Tensor) -> Tensor:
    hidden: Tensor = body(x)
    return hidden


def recomputed(body: nn.Module, x: Tensor) -> Tensor:
    hidden: Tensor = checkpoint(body, x, use_reentrant=False)
    return hidden


def reentrant(body: nn.Module, x: Tensor) -> Tensor:
    hidden: Tensor = checkpoint(body, x.requires_grad_(), use_reentrant=True)
    return hidden


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(K * WINDOWS):
        yield (
            torch.randn(8, 6, generator=generator),
            torch.randint(0, 5, (8,), generator=generator),
        )


def train(
    model: Model,
    body: float = K,
    head: float = 1,
    head_every: int = 1,
    extra: Callable[[], Tensor] | None = None,
    order: tuple[int, ...] = (0, 1),
) -> tuple[Recording, dict[int, list[float]]]:
    """The losses are divided by ``body`` and ``head``. Returns what is recorded, and the factor on
    the true gradient of the losses' mean over each window, by optimizer.

    Optimizer 0 is the head's, if it steps first in ``order``.
    """
    factors: dict[int, list[float]] = {0: [], 1: []}
    with recording() as recorded:
        parts = [(model.head, head_every), (model.body, K)]
        optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part, _ in parts]
        true: list[list[Tensor]] = [[], []]
        for number, (x, y) in enumerate(batches(), 1):
            of_body, of_head = model.losses(x, y)
            for at, loss in enumerate((of_head, of_body)):
                weights = list(parts[at][0].parameters())
                if not model.opaque and model.run is plain:
                    gradients = torch.autograd.grad(loss, weights, retain_graph=True)
                    true[at].append(torch.cat([g.flatten() for g in gradients]))
            loss = of_body if body == 1 else of_body / body
            loss = loss + (of_head if head == 1 else of_head / head)
            (loss if extra is None else loss + extra()).backward()
            for at in order:
                part, every = parts[at]
                if number % every == 0:
                    if true[at]:
                        mean = torch.stack(true[at]).mean(0)
                        applied = torch.cat([p.grad.flatten() for p in part.parameters()])  # type: ignore[union-attr]
                        factors[at].append(float(applied @ mean / (mean @ mean)))
                        true[at].clear()
                    optimizers[at].step()
                    optimizers[at].zero_grad()
    return recorded, factors


def kinds(recorded: Recording, optimizer: int) -> set[tuple[str, ...]]:
    """The losses of the micro-batches of an optimizer."""
    records = recorded.records(optimizer)
    return {tuple(t.kind for t in m.terms) for r in records for m in r.micro_batches}


def reasons(recorded: Recording, optimizer: int) -> list[str | None]:
    """For each step, why the losses of the optimizer are not known."""
    return [r.micro_batches[0].missing.get("reach") for r in recorded.records(optimizer)]


@pytest.mark.parametrize("run", [plain, recomputed, reentrant])
def test_each_loss_counts_for_the_optimizer_that_it_reaches(run: Run) -> None:
    recorded, factors = train(Model(run))
    assert kinds(recorded, 0) == {(HEAD,)}
    assert kinds(recorded, 1) == {(BODY,)}
    for optimizer in (0, 1):
        facts = recorded.facts(optimizer)
        balances = [each.ledger.balance for each in facts if each.ledger]
        assert balances == pytest.approx([1.0] * len(facts), rel=1e-4)
        if run is plain:
            assert factors[optimizer] == pytest.approx(balances, rel=1e-4)
        assert {m.elsewhere for r in recorded.records(optimizer) for m in r.micro_batches} == {1}
        assert all(each.loss_token is None for each in facts)  # the root has another loss, too
    assert accused(recorded.evaluation(optimizers=["SGD", "SGD"])) == {}


@pytest.mark.parametrize(
    ("body", "head", "rule"),
    [
        (1, 1, "reduction.missing_division"),
        (K, K, "loop.step_every_microbatch"),
        (K * K, 1, "reduction.double_division"),
    ],
)
def test_a_wrong_division_is_that_of_the_optimizer_it_reaches(
    body: float, head: float, rule: str
) -> None:
    recorded, factors = train(Model(plain), body, head)
    for optimizer in (0, 1):
        balances = [each.ledger.balance for each in recorded.facts(optimizer) if each.ledger]
        assert factors[optimizer] == pytest.approx(balances, rel=1e-4)
    evaluation = recorded.evaluation(optimizers=["SGD", "SGD"])
    assert set(accused(evaluation)) == {rule}
    (finding,) = [f for f in evaluation.findings if f.inhibited_by is None]
    assert finding.optimizer == (0 if head == K else 1)


def test_a_text_names_the_loss_if_another_one_reaches_another_optimizer() -> None:
    recorded, _ = train(Model(plain), 1)
    (finding,) = recorded.evaluation(optimizers=["SGD", "SGD"]).findings
    assert finding.title == f"The mean squared error is not divided by K = {K}"


def test_losses_that_reach_all_optimizers_count_for_each() -> None:
    recorded, _ = train(Model(plain, detached=False), K, K, head_every=K)
    assert kinds(recorded, 0) == {(HEAD,)}  # the other one does not pass the head
    assert kinds(recorded, 1) == {(HEAD, BODY)} or kinds(recorded, 1) == {(BODY, HEAD)}
    assert accused(recorded.evaluation(optimizers=["SGD", "SGD"])) == {}


def test_an_optimizer_that_steps_too_often_shares_a_loss_with_the_one_that_accumulates() -> None:
    shared, _ = train(Model(plain, detached=False), K, K)
    assert {r.stepped_each for r in shared.records(1)} == {0}
    apart, _ = train(Model(plain), K, K)
    assert {r.stepped_each for r in apart.records(1)} == {None}


def test_where_a_function_hides_the_way_nothing_is_stated() -> None:
    recorded, _ = train(Model(plain, opaque=True))
    assert reasons(recorded, 0) == [None] * K * WINDOWS  # its loss reaches the head at once
    assert kinds(recorded, 0) == {(HEAD,)}
    assert all("Halves" in str(each) for each in reasons(recorded, 1))
    assert "Halves" in str(recorded.facts(1)[0].unmeasured)
    assert accused(recorded.evaluation(optimizers=["SGD", "SGD"])) == {}


def test_what_is_true_of_one_of_them_is_stated_if_all_step_on_the_same_backwards() -> None:
    recorded, _ = train(Model(plain, opaque=True), 1, 1, head_every=K, order=(1, 0))
    unknown = [each is not None for each in reasons(recorded, 0)]
    assert unknown == [True, *[False] * (WINDOWS - 1)]  # the head may step later on its own
    assert "reduction.missing_division" in accused(recorded.evaluation(optimizers=["SGD", "SGD"]))


def test_each_penalty_counts_for_the_optimizer_of_its_parameters() -> None:
    model = Model(plain)

    def penalty() -> Tensor:
        return sum((0.1 * p.square().sum() for p in model.parameters()), torch.zeros(()))

    recorded, _ = train(model, extra=penalty)
    for optimizer in (0, 1):
        terms = [m.terms for r in recorded.records(optimizer) for m in r.micro_batches]
        assert {sum(term.penalty for term in each) for each in terms} == {1}


def test_a_graph_that_is_too_large_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reached_optimizers, "MAX_NODES", 3)
    recorded, _ = train(Model(plain))
    assert None not in [*reasons(recorded, 0), *reasons(recorded, 1)]
    assert accused(recorded.evaluation(optimizers=["SGD", "SGD"])) == {}


def many(
    model: Model, detached: Callable[[int], bool], count: int
) -> list[tuple[set[str], set[str]]]:
    """The losses of the head and of the body in each of many backwards."""
    with recording() as recorded:
        optimizers = [torch.optim.SGD(part.parameters()) for part in (model.head, model.body)]
        for number in range(count):
            model.detached = detached(number)
            of_body, of_head = model.losses(torch.randn(8, 6), torch.randint(0, 5, (8,)))
            (of_body + of_head).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    head, body = (
        [{term.kind for term in record.micro_batches[0].terms} for record in recorded.records(at)]
        for at in (0, 1)
    )
    return list(zip(head, body, strict=True))


class FarHead(Model):
    """The head's features are computed from the body's in many steps, below which they part."""

    def losses(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.run(self.body, x)
        features = (hidden.detach() if self.detached else hidden) + 0.1 * self.head.bias.mean()
        for _ in range(2 * reached_optimizers.NEAR):
            features = features.tanh()
        return F.mse_loss(hidden, x.detach()), F.cross_entropy(self.head(features), y)


@pytest.mark.parametrize("model", [Model, FarHead])
def test_the_whole_graph_is_followed_in_some_backwards_only(
    model: type[Model],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walks: list[object] = []
    run = reached_optimizers._Walk._run

    def counted(walk: Any) -> None:
        walks.append(walk)
        run(walk)

    monkeypatch.setattr(reached_optimizers._Walk, "_run", counted)
    count = 100
    reached = {BODY} if model is Model else {HEAD, BODY}
    assert many(model(plain), lambda _: model is Model, count) == [({HEAD}, reached)] * count
    assert len(walks) <= reached_optimizers.SAME + count // reached_optimizers.EVERY + 1


def test_the_losses_of_the_only_optimizer_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not known before it steps: until then, an update by hand is looked for."""
    walks: list[object] = []
    monkeypatch.setattr(reached_optimizers._Walk, "_run", lambda walk: walks.append(walk))
    model = nn.Linear(6, 5)
    optimizer = torch.optim.SGD(model.parameters())
    with recording():
        for _ in range(4):
            x, y = torch.randn(8, 6), torch.randint(0, 5, (8,))
            (F.cross_entropy(model(x), y) + F.mse_loss(model(x), x[:, :5])).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert walks == []


@pytest.mark.parametrize("model", [Model, FarHead])
def test_a_loss_that_is_detached_later_counts_no_more_at_once(model: type[Model]) -> None:
    losses = many(model(plain), lambda number: number >= 30, 60)
    assert losses == [({HEAD}, {HEAD, BODY})] * 30 + [({HEAD}, {BODY})] * 30


def test_a_loss_that_is_detached_no_more_counts_at_once() -> None:
    losses = many(Model(plain), lambda number: number % 15 != 14, 60)
    assert losses == ([({HEAD}, {BODY})] * 14 + [({HEAD}, {HEAD, BODY})]) * 4


def test_a_loss_that_is_attached_far_below_counts_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reached_optimizers, "NEAR", 3)
    losses = many(Model(plain), lambda number: number < 30, 60)
    assert losses[:30] == [({HEAD}, {BODY})] * 30
    assert losses[30 + reached_optimizers.EVERY :] == [({HEAD}, {HEAD, BODY})] * (
        30 - reached_optimizers.EVERY
    )


def test_losses_of_many_critic_steps_do_not_stand_for_those_of_the_generator() -> None:
    generator, critic = nn.Linear(4, 6), nn.Sequential(*(nn.Linear(6, 6) for _ in range(40)))
    with recording() as recorded:
        of_critic, of_generator = (torch.optim.SGD(m.parameters()) for m in (critic, generator))
        for number in range(1, 53):
            fake = generator(torch.randn(8, 4))
            real, trains_critic = torch.randn(8, 6), number % 13 != 0
            pair = (real, fake.detach()) if trains_critic else (fake, 2 * fake)
            losses = [F.mse_loss(critic(x), torch.ones(8, 6)) for x in pair]
            (losses[0] + losses[1]).backward()
            (of_critic if trains_critic else of_generator).step()
            of_critic.zero_grad()
            of_generator.zero_grad()
    assert reasons(recorded, 0) == [None] * 48
    assert reasons(recorded, 1) == [None] * 4
    assert kinds(recorded, 1) == {(BODY, BODY)}


def test_nothing_of_the_graph_is_kept() -> None:
    model = Model(plain)
    with recording() as recorded:
        optimizers = [torch.optim.SGD(part.parameters()) for part in (model.head, model.body)]
        x, y = next(batches())
        losses = model.losses(x, y)
        note = Note()
        losses[0].grad_fn.metadata["note"] = note  # type: ignore[union-attr,index]
        node = weakref.ref(note)
        del note
        sum(losses, torch.zeros(())).backward()
        del losses
        gc.collect()
        assert node() is None
        for optimizer in optimizers:
            optimizer.step()
    assert kinds(recorded, 1) == {(BODY,)}


def test_a_failure_is_reported_and_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any) -> None:
        raise ValueError("no graph")

    reported: list[str] = []
    monkeypatch.setattr("gradledger.guard.reporter", lambda where, error: reported.append(where))
    monkeypatch.setattr(reached_optimizers._Walk, "_run", fail)
    recorded, _ = train(Model(plain))
    assert set(reported) == {"the search for the optimizers of a loss"}
    assert all("ValueError" in str(each) for each in reasons(recorded, 1))
