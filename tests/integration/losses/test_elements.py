"""The elements of a hand-written loss: their number and weights, against their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from msgspec import structs
from torch import Tensor, nn

from gradledger_monitor.ingest import schema
from helpers.training import CLASSES, INPUTS, Truth, recording, tiny_model

from .hand_written import (
    NLL,
    OBJECTIVES,
    Loss,
    Objective,
    Rows,
    entropies,
    focal,
    focal_of_ignored,
    joined,
    per_pair,
    smoothed_apart,
)

by_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=list(OBJECTIVES))


def terms_of(loss: Callable[[nn.Module], Tensor], model: nn.Module) -> list[schema.Term]:
    """The terms of one backward."""
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        loss(model).backward()
        optimizer.step()
    (record,) = recorded.records()
    return record.micro_batches[0].terms


def terms_on(rows: Rows, loss: Loss, model: nn.Module | None = None) -> list[schema.Term]:
    """The terms of one loss of a tiny model's logits."""
    return terms_of(lambda each: loss(each(rows.inputs), rows), model or tiny_model())


def true_weights(rows: Rows, loss: Loss, elements: Loss) -> Tensor:
    """The one combination of the elements' gradients that is the gradient of the loss."""
    model = tiny_model().double()
    doubled = Rows(*(v.double() if v.is_floating_point() else v for v in vars(rows).values()))

    def gradient(value: Tensor) -> Tensor:
        parts = torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
        return torch.cat([part.flatten() for part in parts])

    logits = model(doubled.inputs)
    values = elements(logits, doubled).flatten()
    gradients = torch.stack([gradient(value) for value in values])
    used = gradients.norm(dim=1) > 0
    applied = gradient(loss(logits, doubled))
    return Truth.solve(values.detach()[used], gradients[used], applied).weights


@by_objective
@pytest.mark.parametrize("count", [2, 6, 10])
def test_tokens_are_the_elements_with_a_gradient(objective: Objective, count: int) -> None:
    rows = Rows.of(count)
    weights = true_weights(rows, objective.loss, objective.tokens)
    weights = weights[weights.abs() > 1e-9]
    (term,) = terms_on(rows, objective.loss)
    assert (term.kind, term.of) == (objective.kind, objective.of)
    assert term.tokens == len(weights)
    assert abs(float(term.weight or 0)) == pytest.approx(abs(float(weights.mean())), rel=1e-4)
    if term.weight_min is not None:
        assert term.weight_min == pytest.approx(float(weights.abs().min()), rel=1e-4)
        assert term.weight_max == pytest.approx(float(weights.abs().max()), rel=1e-4)
        size = abs(float(term.weight or 0)) if term.weight_size is None else term.weight_size
        assert size == pytest.approx(float(weights.abs().mean()), rel=1e-4)
    else:
        assert float(weights.std()) < 1e-6


@by_objective
@pytest.mark.parametrize("count", [2, 6])
def test_elements_are_what_the_outermost_reduction_weighs(objective: Objective, count: int) -> None:
    rows, model = Rows.of(count), tiny_model()
    logits = model(rows.inputs)
    reduced = (objective.reduced or objective.tokens)(logits, rows)
    (term,) = terms_on(rows, objective.loss)
    assert term.elements == reduced.numel()
    assert isinstance(term.element_weight, float)
    total, loss = (
        torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
        for value in (reduced.sum(), objective.loss(logits, rows))
    )
    for one, applied in zip(total, loss, strict=True):
        torch.testing.assert_close(one * term.element_weight, applied, rtol=1e-4, atol=1e-6)


def shape_of_term(term: schema.Term) -> tuple[object, ...]:
    """What names an objective: it must not depend on the micro-batch."""
    constants = (term.undivided, term.coefficient, term.outer_coefficient)
    described = (term.kind, term.reduction, term.of, *constants)
    return (*described, term.nonlinear, term.penalty, term.head, term.elements is None)


def test_a_divergence_has_the_head_of_the_cross_entropy_on_its_logits() -> None:
    def distilled(logits: Tensor, rows: Rows) -> Tensor:
        teacher = logits.detach().roll(1, -1).softmax(-1)
        soft = F.kl_div(logits.log_softmax(-1), teacher, reduction="batchmean")
        return F.cross_entropy(logits, rows.labels) + soft

    terms = terms_on(Rows.of(6), distilled)
    assert [term.head for term in terms if term.kind.startswith(("NllLoss", "KlDiv"))] == [1, 1]


@pytest.mark.parametrize("shape", [(12, CLASSES), (2, 6, CLASSES)])
def test_a_smoothing_over_a_view_that_a_cross_entropy_uses_has_weights_of_its_own(
    shape: tuple[int, ...],
) -> None:
    """Below the view, the gradient is the sum of both."""

    def smoothed(logits: Tensor, rows: Rows) -> Tensor:
        log_p = logits.reshape(shape).log_softmax(-1).reshape(12, CLASSES)
        nll = F.nll_loss(log_p, rows.labels, reduction="sum")
        return nll / 9 - 0.1 * log_p.mean(-1).mean()

    picked, spread = terms_on(Rows.of(12), smoothed)
    assert picked.tokens == 12 and float(picked.weight or 0) == pytest.approx(1 / 9)
    assert (spread.kind, spread.tokens, spread.head) == ("LabelSmoothing", 12, picked.head)
    assert abs(float(spread.weight or 0)) == pytest.approx(0.1 / 12)


@pytest.mark.parametrize(
    ("smoothing", "positions"),
    [
        (lambda log_p, mask: 0.1 * (-log_p.mean(-1)).mean(), 12),
        (lambda log_p, mask: -0.1 * log_p.mean(), 12),
        (lambda log_p, mask: 0.1 * (-log_p.sum(-1).mean() / CLASSES), 12),
        (lambda log_p, mask: 0.1 / CLASSES * -log_p.sum(-1).mean(), 12),
        # it leaves out what is ignored
        (lambda log_p, mask: 0.1 * (-log_p.mean(-1))[mask].mean(), None),
        (lambda log_p, mask: 0.1 * (-log_p.mean(-1) * mask).mean(), None),
        (lambda log_p, mask: 0.1 * (-log_p[mask].mean(-1)).mean(), None),
        (lambda log_p, mask: 0.1 * (-log_p.mean(-1)).masked_fill(~mask, 0).mean(), None),
        # no label smoothing: its weight is another one
        (lambda log_p, mask: 0.2 * (-log_p.mean(-1)).mean(), None),
        (lambda log_p, mask: 0.1 * log_p.mean(), None),
    ],
)
def test_a_smoothing_inside_a_cross_entropy_states_the_positions_that_it_counts(
    smoothing: Callable[[Tensor, Tensor], Tensor], positions: int | None
) -> None:
    def smoothed(logits: Tensor, rows: Rows) -> Tensor:
        log_p, mask = logits.log_softmax(-1), torch.arange(12) > 2
        labels = rows.labels.masked_fill(~mask, -100)
        return 0.9 * F.nll_loss(log_p, labels) + smoothing(log_p, mask)

    term = terms_on(Rows.of(12), smoothed)[0]
    assert term.kind == "NllLossBackward0" and term.smoothed == positions


def test_a_loss_of_each_token_states_which_targets_it_does_not_ignore() -> None:
    """So a mask above it is no padding."""
    labels = torch.arange(12) % CLASSES
    labels[:3] = -100
    mask = (torch.arange(12) % 2).double()

    def masked(logits: Tensor, rows: Rows) -> Tensor:
        return (F.cross_entropy(logits, labels, reduction="none") * mask).mean()

    (term,) = terms_on(Rows.of(12), masked)
    assert (term.size, term.valid, term.tokens) == (12, 9, 5)


def test_targets_of_one_byte_are_classes_and_no_mask() -> None:
    labels = (torch.arange(12) % CLASSES).to(torch.uint8)
    weights = torch.linspace(1.0, 2.0, CLASSES)

    def mean(logits: Tensor, rows: Rows) -> Tensor:
        return F.cross_entropy(logits, labels, weight=weights, reduction="none").mean()

    (term,) = terms_on(Rows.of(12), mean)
    assert term.class_weight == pytest.approx(weights[labels.long()].sum().item())


def test_a_smoothing_of_images_counts_their_pixels() -> None:
    def smoothed(logits: Tensor, rows: Rows) -> Tensor:
        log_p = logits.reshape(2, 6, CLASSES).transpose(1, 2).log_softmax(1)
        labels = rows.labels.reshape(2, 6)
        return 0.9 * F.nll_loss(log_p, labels) + 0.1 * (-log_p.sum(1) / CLASSES).mean()

    (term,) = terms_on(Rows.of(12), smoothed)
    assert term.smoothed == term.size == 12


def test_a_label_smoothing_of_pytorch_states_no_positions() -> None:
    def smoothed(logits: Tensor, rows: Rows) -> Tensor:
        labels = rows.labels.masked_fill(torch.arange(12) < 3, -100)
        return F.cross_entropy(logits, labels, label_smoothing=0.1)

    (term,) = terms_on(Rows.of(12), smoothed)
    assert term.tokens == 9 and term.smoothed is None


def test_the_losses_of_a_sum_are_in_the_order_of_the_script() -> None:
    """Also if the first one is deeper in the graph than the second."""

    def of_two(logits: Tensor, rows: Rows) -> Tensor:
        words = F.cross_entropy(logits, rows.labels)
        squares = (logits[:, :3] ** 2).sum()
        intent = F.cross_entropy(2 * logits, rows.labels)
        return intent + (0.1 * (squares + (words / 2 + 0.0)))

    words, squares, intent = terms_on(Rows.of(6), of_two)
    assert (words.kind, squares.kind, intent.kind) == (NLL, "SumBackward0", NLL)
    assert float(words.weight or 0) == pytest.approx(0.05 / 6)
    assert float(intent.weight or 0) == pytest.approx(1 / 6)


def test_the_weights_of_outputs_that_a_loss_node_uses_too_are_their_own() -> None:
    """A penalty on some outputs, beside their squared error."""

    def penalised(logits: Tensor, rows: Rows) -> Tensor:
        outputs = logits.reshape(-1)
        used = (torch.arange(len(outputs)) % 2).float()
        return F.mse_loss(outputs, torch.ones_like(outputs)) + 0.1 * (outputs * used).sum()

    error, penalty = terms_on(Rows.of(12), penalised)
    assert error.kind == "MseLossBackward0"
    assert penalty.tokens == 6 * CLASSES
    assert float(penalty.weight_min or 0) == pytest.approx(0.1)
    assert float(penalty.weight_max or 0) == pytest.approx(0.1)


@by_objective
def test_a_micro_batch_of_one_row_has_the_same_objective(objective: Objective) -> None:
    if objective.reduced is per_pair:
        pytest.skip("a sequence has two rows")
    one, many = (terms_on(Rows.of(count), objective.loss) for count in (1, 6))
    assert list(map(shape_of_term, one)) == list(map(shape_of_term, many))


@pytest.mark.parametrize(
    ("divisors", "recorded"),
    [
        ((), []),
        ((4,), [4.0]),
        ((1.0, 4, 0.5), [4.0, 0.5]),
        ((torch.tensor(8),), [8.0]),
        ((2,) * 12, [2.0] * 7 + [0.0]),
    ],
)
def test_divisors_are_recorded_from_the_root_on_and_the_last_of_many_as_0(
    divisors: tuple[float, ...], recorded: list[float]
) -> None:
    def divided(logits: torch.Tensor, _: Rows) -> torch.Tensor:
        loss = logits.softmax(-1).mean(0).square().sum()
        for divisor in reversed(divisors):
            loss = loss / divisor
        return loss

    (term,) = terms_on(Rows.of(6), divided)
    assert term.divisors == recorded


@pytest.mark.parametrize(
    ("weights", "outer"), [((1.0,), None), ((0.01,), 0.01), ((), None), ((0.01, 1.0), 0.01)]
)
def test_of_several_constants_the_product_and_the_outermost_are_recorded(
    weights: tuple[float, ...], outer: float | None
) -> None:
    """A factor of 1 is none: Accelerate multiplies by the number of processes."""

    def router(logits: torch.Tensor, _: Rows) -> torch.Tensor:
        loss = 4 * logits.softmax(-1).mean(0).square().sum()
        for weight in weights:
            loss = weight * loss
        return loss

    (term,) = terms_on(Rows.of(6), router)
    assert (term.coefficient, term.outer_coefficient) == (4 * math.prod(weights), outer)


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("of", [torch.clone, torch.exp], ids=["itself", "exp"])
def test_a_number_that_data_multiply_has_an_element_for_each_row(
    shape: tuple[int, ...], of: Callable[[Tensor], Tensor]
) -> None:
    """The temperature of SAC: one parameter, and the mean over the batch."""
    temperature = nn.ParameterList([nn.Parameter(torch.ones(shape))])

    def loss(_: nn.Module) -> Tensor:
        return -(of(temperature[0]) * torch.randn(6, 1)).mean()

    (term,) = terms_of(loss, temperature)
    assert (term.reduction, term.tokens, term.penalty) == ("mean", 6, False)
    assert term.weight == pytest.approx(-1 / 6)


def test_a_loss_that_weights_multiply_keeps_its_elements() -> None:
    rows = Rows.of(6)
    weights = torch.rand(4)
    (term,) = terms_on(
        rows, lambda logits, each: (F.cross_entropy(logits, each.labels) * weights).mean()
    )
    assert term.tokens == 6 and term.weight == pytest.approx(float(weights.mean()) / 6)


@by_objective
def test_the_gradients_are_those_of_a_run_without_hooks(objective: Objective) -> None:
    rows = Rows.of(6)
    observed, alone = tiny_model(), tiny_model()
    terms_on(rows, objective.loss, observed)
    objective.loss(alone(rows.inputs), rows).backward()
    for ours, theirs in zip(observed.parameters(), alone.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)


# ---------------------------------------------------------------------- several losses, or none


def described(loss: Loss) -> list[tuple[str, int | None, float]]:
    """Kind, tokens and rounded weight of each term, on six rows."""
    terms = terms_on(Rows.of(6), loss)
    return [(t.kind, t.tokens, round(float(t.weight or 0), 4)) for t in terms]


def test_parts_of_one_reduction_are_separate_terms() -> None:
    assert described(lambda x, r: joined(x, r).mean()) == [(NLL, 3, 0.1667), (NLL, 3, 0.1667)]
    assert all(t.elements is None for t in terms_on(Rows.of(6), lambda x, r: joined(x, r).mean()))


def test_stacked_losses_are_separate_terms() -> None:
    def loss(logits: Tensor, rows: Rows) -> Tensor:
        first, second = entropies(logits, rows).mean(), focal(logits, rows).mean()
        return torch.stack([first, second]).mean()

    assert described(loss) == [(NLL, 6, 0.0833), (NLL, 6, 0.0833)]
    assert [t.of for t in terms_on(Rows.of(6), loss)] == [None, NLL]


def test_losses_assigned_to_a_vector_are_separate_terms() -> None:
    def loss(logits: Tensor, rows: Rows) -> Tensor:
        losses = torch.zeros(2)
        losses[1] = focal(logits, rows).sum() / 6
        losses[0] = entropies(logits, rows).mean()
        losses[0] *= 0.5
        return losses.sum()

    assert sorted(described(loss)) == [(NLL, 6, 0.0833), (NLL, 6, 0.1667)]
    assert {t.of for t in terms_on(Rows.of(6), loss)} == {None, NLL}


def test_the_parts_of_smoothed_labels_add_up_to_one_weight() -> None:
    (term,) = terms_on(Rows.of(6), smoothed_apart)
    assert term.tokens == 6
    assert abs(float(term.weight or 0)) == pytest.approx(1 / 6)


def test_a_division_of_several_losses_by_one_is_none() -> None:
    def loss(logits: Tensor, rows: Rows) -> Tensor:
        return (entropies(logits, rows).mean() + 0.1 * focal(logits, rows).mean()) / 1

    assert all(t.undivided for t in terms_on(Rows.of(6), loss))


@pytest.mark.parametrize(
    ("reduction", "divisor", "undivided"),
    [("mean", 1, True), ("mean", 2, False), ("sum", 1, False)],
)
def test_a_division_of_one_mean_by_one_is_none(
    reduction: str, divisor: int, undivided: bool
) -> None:
    """Of a sum, 1 may be the number of its tokens."""

    def loss(logits: Tensor, rows: Rows) -> Tensor:
        return 0.5 * F.mse_loss(logits, rows.teacher, reduction=reduction) / divisor

    (term,) = terms_on(Rows.of(6), loss)
    assert term.undivided is undivided


def test_losses_in_a_dictionary_are_separate_terms() -> None:
    def loss(logits: Tensor, rows: Rows) -> Tensor:
        losses = {"a": focal(logits, rows).mean(), "b": F.mse_loss(logits, rows.teacher)}
        return sum(losses.values(), torch.zeros(()))

    assert sorted(described(loss)) == [("MseLossBackward0", 42, 0.0238), (NLL, 6, 0.1667)]


def test_two_losses_of_one_vector_have_their_own_weights() -> None:
    def loss(logits: Tensor, rows: Rows) -> Tensor:
        losses = entropies(logits, rows)
        return losses.mean() + 0.5 * losses.square().mean()

    assert described(loss) == [(NLL, 6, 0.1667), (NLL, 6, 0.0833)]


def test_two_reductions_of_one_masked_vector_are_counted_once() -> None:
    def loss(logits: Tensor, rows: Rows) -> Tensor:
        masked = entropies(logits, rows) * rows.mask
        return masked.sum() / 5 + masked.mean()

    assert described(loss) == [(NLL, 5, 0.3667)]
    assert terms_on(Rows.of(6), loss)[0].elements is None


def test_split_losses_are_counted_once() -> None:
    def loss(logits: Tensor, rows: Rows) -> Tensor:
        first, second = entropies(logits, rows).chunk(2)
        return (first.sum() + second.sum()) / 6

    assert described(loss) == [(NLL, 6, 0.1667)]


def test_a_router_loss_counts_its_tokens() -> None:
    """Load balancing: the mean probability of each expert, times the share that it got."""

    def router(logits: Tensor, rows: Rows) -> Tensor:
        probabilities = logits.softmax(-1)
        share = F.one_hot(probabilities.argmax(-1), CLASSES).float().mean(0)
        return F.cross_entropy(logits, rows.labels) + 0.1 * (probabilities.mean(0) * share).sum()

    term, auxiliary = terms_on(Rows.of(6), router)
    assert (term.kind, term.elements) == (NLL, None)
    assert (auxiliary.kind, auxiliary.tokens, auxiliary.elements) == ("SumBackward0", 6, CLASSES)
    assert float(auxiliary.element_weight or 0) == pytest.approx(0.1)
    assert float(auxiliary.weight or 0) == pytest.approx(0.1 / 6)
    assert auxiliary.nonlinear


def test_a_contrastive_loss_is_a_cross_entropy() -> None:
    def loss(logits: Tensor, rows: Rows) -> Tensor:
        others = F.normalize(rows.teacher, dim=-1)
        similarities = F.normalize(logits, dim=-1) @ others.T / 0.07
        return F.cross_entropy(similarities, torch.arange(len(logits)))

    assert described(loss) == [(NLL, 6, 0.1667)]


def test_a_surrogate_of_cached_gradients_has_one_element_per_number() -> None:
    """GradCache: representations times gradients that were computed before."""
    (term,) = terms_on(Rows.of(6), lambda x, r: (x * r.teacher).sum())
    assert (term.kind, term.tokens, term.elements) == ("SumBackward0", 42, 42)
    assert term.element_weight == 1.0
    assert float(term.weight_max or 0) == pytest.approx(float(Rows.of(6).teacher.max()))


# ---------------------------------------------------------------------- functions of a micro-batch


def dice(logits: Tensor, rows: Rows) -> Tensor:
    predicted = logits.sigmoid()
    overlap = (predicted * rows.teacher).sum()
    return 1 - (2 * overlap + 1) / (predicted.sum() + rows.teacher.sum() + 1)


def uncertain(logits: Tensor, rows: Rows) -> Tensor:
    """Two tasks, weighted by a learned uncertainty each."""
    noise = torch.zeros(2, requires_grad=True)
    losses = torch.stack([F.cross_entropy(logits, rows.labels), F.mse_loss(logits, rows.teacher)])
    return (torch.exp(-noise) * losses + noise).sum()


def uncertain_one(logits: Tensor, rows: Rows) -> Tensor:
    noise = torch.zeros(1, requires_grad=True)
    return (torch.exp(-noise) * focal(logits, rows).mean() + noise).sum()


NONLINEAR: list[tuple[Loss, list[str]]] = [
    (lambda x, r: F.mse_loss(x, r.teacher).sqrt(), ["MseLossBackward0"]),
    (lambda x, r: torch.exp(F.cross_entropy(x, r.labels)), [NLL]),
    (lambda x, r: 1 / F.cross_entropy(x, r.labels), [NLL]),
    (
        lambda x, r: F.cross_entropy(x, r.labels) * F.mse_loss(x, r.teacher),
        [NLL, "MseLossBackward0"],
    ),
    (dice, ["SumBackward0", "SumBackward0"]),
    (uncertain, [NLL, "MseLossBackward0"]),
    (uncertain_one, [NLL]),
]


@pytest.mark.parametrize(("loss", "kinds"), NONLINEAR)
def test_a_function_of_a_whole_micro_batch_is_not_linear(loss: Loss, kinds: list[str]) -> None:
    terms = terms_on(Rows.of(6), loss)
    assert [t.kind for t in terms] == kinds
    assert all(t.nonlinear for t in terms)


@pytest.mark.parametrize(
    "guard",
    [
        torch.nan_to_num,
        lambda loss: loss.clamp(max=1e4),
        lambda loss: torch.clamp_min(loss, 1e-4),
        lambda loss: torch.clamp(loss, torch.tensor(0.0), torch.tensor(1e4)),
    ],
)
def test_a_guard_passes_a_loss_on(guard: Callable[[Tensor], Tensor]) -> None:
    """Its derivative is 1, or 0 where it replaces the loss."""
    rows = Rows.of(6)
    (term,) = terms_on(rows, lambda x, r: guard(F.cross_entropy(x, r.labels)) / 4)
    assert not term.nonlinear
    assert float(term.weight or 0) == pytest.approx(1 / 24)


def test_a_loss_that_a_guard_replaces_has_no_weight() -> None:
    (term,) = terms_on(Rows.of(6), lambda x, r: F.cross_entropy(x, r.labels).clamp(max=0.01))
    assert not term.nonlinear and term.weight == 0


@pytest.mark.parametrize(
    "weigh",
    [
        lambda loss, s: torch.exp(-s[0]) * (loss / 4),
        lambda loss, s: (torch.exp(-s[0]) * loss) / 4,
        lambda loss, s: loss / 4 / (2 * s[0] ** 2),
        lambda loss, s: s[1] * (loss * 0.25) + s[0],
    ],
)
def test_a_factor_that_the_model_learns_is_divided_out(
    weigh: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """It is the same in all micro-batches; a division by their number may be above or below it."""
    learned = torch.nn.Parameter(torch.tensor([0.7, -1.5]))
    (term,) = terms_on(Rows.of(6), lambda x, r: weigh(F.cross_entropy(x, r.labels), learned))
    assert not term.nonlinear and not (term.undivided and term.coefficient != 0.25)
    assert float(term.weight or 0) == pytest.approx(1 / 24)


def test_below_a_factor_that_the_model_learns_a_function_has_its_own_weight() -> None:
    learned = torch.nn.Parameter(torch.tensor(0.7))
    loss: Loss = lambda x, r: learned * F.mse_loss(x, r.teacher).sqrt() / 4  # noqa: E731
    (term,) = terms_on(Rows.of(6), loss)
    assert term.nonlinear and term.function_weight == pytest.approx(1 / 4)


def test_a_factor_that_depends_on_data_is_part_of_a_function() -> None:
    loss: Loss = lambda x, r: x.mean().sigmoid() * F.cross_entropy(x, r.labels)  # noqa: E731
    assert all(term.nonlinear for term in terms_on(Rows.of(6), loss))


@pytest.mark.parametrize(
    ("weigh", "divisors"),
    [
        (lambda gate, loss: gate * (loss / 4), [4.0]),
        (lambda gate, loss: gate * (0.25 * loss), [4.0]),
        (lambda gate, loss: (gate * (2 * (loss / 4 + loss.square() / 4))) / 3, [3.0, 4.0]),
        (lambda gate, loss: (loss / 4) * (gate / 3), [4.0, 3.0]),
        (lambda gate, loss: (loss / 4) / gate, [4.0]),
        (lambda gate, loss: gate * (loss / 4 + loss.square()), []),
        (lambda gate, loss: gate * (loss / 4).exp(), []),
    ],
)
def test_what_divides_a_factor_divides_the_product(
    weigh: Callable[[Tensor, Tensor], Tensor], divisors: list[float]
) -> None:
    """The model computes the other factor, a gate, from the data of the micro-batch."""
    loss: Loss = lambda x, r: weigh(x.mean().sigmoid(), F.cross_entropy(x, r.labels))  # noqa: E731
    terms = terms_on(Rows.of(6), loss)
    assert terms and all(term.nonlinear and term.divisors == divisors for term in terms)


def test_a_loss_that_a_learned_factor_of_zero_multiplies_is_not_measured() -> None:
    learned = torch.nn.Parameter(torch.tensor(0.0))
    (term,) = terms_on(Rows.of(6), lambda x, r: learned * F.cross_entropy(x, r.labels))
    assert term.weight is None and "learns" in term.missing["weight"]


def test_a_learned_factor_that_a_hook_holds_is_not_measured() -> None:
    learned = torch.nn.Parameter(torch.tensor(0.7))

    def offloaded(x: Tensor, r: Rows) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return learned.exp() * (F.cross_entropy(x, r.labels) / 4)

    (term,) = terms_on(Rows.of(6), offloaded)
    assert not term.nonlinear and term.weight is None and "learns" in term.missing["weight"]


@by_objective
def test_a_loss_with_constant_factors_is_linear(objective: Objective) -> None:
    (term,) = terms_on(Rows.of(6), lambda x, r: 3 - objective.loss(x, r) * 0.5 / 4)
    assert not term.nonlinear and not term.penalty


# ---------------------------------------------------------------------- penalties

Penalty = Callable[[nn.Module], Tensor]

PENALTIES: dict[str, Penalty] = {
    "L2": lambda m: sum_of(p.square().sum() for p in m.parameters()),
    "L1": lambda m: sum_of(p.abs().sum() for p in m.parameters()),
    "mean": lambda m: sum_of((p**2).mean() for p in m.parameters()),
    "norms": lambda m: sum_of(p.norm() for p in m.parameters()),
    "norm of norms": lambda m: torch.stack([p.norm() for p in m.parameters()]).norm(),
    "EWC": lambda m: sum_of(
        (torch.rand_like(p) * (p - p.detach()) ** 2).sum() for p in m.parameters()
    ),
    "all at once": lambda m: torch.cat([p.flatten() for p in m.parameters()]).square().sum(),
    "orthogonal": lambda m: sum_of(
        (p @ p.T - torch.eye(len(p))).square().sum() for p in m.parameters() if p.dim() == 2
    ),
}


def sum_of(values: Iterable[Tensor]) -> Tensor:
    return sum(values, torch.zeros(()))


@pytest.mark.parametrize("penalty", PENALTIES.values(), ids=list(PENALTIES))
def test_a_function_of_parameters_alone_is_a_penalty(penalty: Penalty) -> None:
    rows = Rows.of(6)

    def loss(model: nn.Module) -> Tensor:
        return F.cross_entropy(model(rows.inputs), rows.labels) + 0.01 * penalty(model)

    term, *penalties = terms_of(loss, tiny_model())
    assert (term.kind, term.tokens, term.penalty) == (NLL, 6, False)
    assert penalties and all(each.penalty for each in penalties)
    assert all(each.coefficient == 0.01 for each in penalties)


def activations(model: nn.Module, rows: Rows) -> Tensor:
    layer = next(iter(model.children()))
    loss: Tensor = 0.01 * layer(rows.inputs).abs().mean()
    return loss


def by_hand(model: nn.Module, rows: Rows) -> Tensor:
    """A regression without a layer."""
    weight = next(iter(model.parameters()))[:1]
    return (weight * rows.inputs - 1).square().mean()


@pytest.mark.parametrize("loss", [activations, by_hand])
def test_a_function_of_data_is_no_penalty(loss: Callable[[nn.Module, Rows], Tensor]) -> None:
    (term,) = terms_of(lambda model: loss(model, Rows.of(6)), tiny_model())
    assert not term.penalty


# ---------------------------------------------------------------------- hidden tensors


@by_objective
def test_no_tensor_that_a_hook_holds_is_unpacked(objective: Objective) -> None:
    rows, unpacked = Rows.of(6), []

    def unpack(value: Tensor) -> Tensor:
        unpacked.append(torch._C._current_graph_task_id())
        return value

    with recording():
        with torch.autograd.graph.saved_tensors_hooks(lambda value: value, unpack):
            loss = objective.loss(tiny_model()(rows.inputs), rows)
        loss.backward()
    assert unpacked and -1 not in unpacked  # only backward itself did


def test_ignored_elements_of_a_hidden_target_are_not_guessed() -> None:
    rows = Rows.of(6)

    def loss(model: nn.Module) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return focal_of_ignored(model(rows.inputs), rows).mean()

    (term,) = terms_of(loss, tiny_model())
    assert term.tokens is None
    assert "checkpointing" in term.missing["tokens"]
    assert term.elements == 6
    assert term.element_weight == pytest.approx(1 / 6)


# ---------------------------------------------------------------------- strange tensors


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_does_not_end_the_observation(layout: torch.layout) -> None:
    parts = [torch.ones(2, INPUTS), torch.ones(3, INPUTS)]
    model = nn.Linear(INPUTS, CLASSES)
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        outputs = model(torch.nested.nested_tensor(parts, layout=layout))
        dense = outputs.values() if layout is torch.jagged else padded(outputs)
        losses = [dense.square().mean()]
        losses += [outputs.sum()] if layout is torch.jagged else []
        torch.stack(losses).sum().backward()
        optimizer.step()
    (micro_batch,) = recorded.records()[0].micro_batches
    assert "loss" not in micro_batch.missing
    assert micro_batch.terms[0].tokens == dense.numel()


def padded(nested: Tensor) -> Tensor:
    values: Tensor = torch.nested.to_padded_tensor(nested, 0.0)
    return values


class _DDPSink(torch.autograd.Function):
    """What DDP puts around its outputs if it looks for unused parameters."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor) -> Tensor:
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


@by_objective
def test_what_ddp_puts_around_its_outputs_changes_no_term(objective: Objective) -> None:
    def behind_ddp(logits: Tensor, rows: Rows) -> Tensor:
        return objective.loss(_DDPSink.apply(logits), rows)  # type: ignore[no-untyped-call]

    plain, behind = (terms_on(Rows.of(6), loss) for loss in (objective.loss, behind_ddp))
    assert [structs.asdict(term) for term in behind] == [structs.asdict(term) for term in plain]


@pytest.mark.parametrize("loss", [Tensor.mean, lambda logits: F.softplus(-logits).mean()])
def test_a_mean_of_the_outputs_of_ddp_is_no_hidden_loss(loss: Callable[[Tensor], Tensor]) -> None:
    """The critic of a WGAN, and the loss of a reward model."""
    (term,) = terms_on(Rows.of(6), lambda logits, rows: loss(_DDPSink.apply(logits)))  # type: ignore[no-untyped-call]
    assert (term.kind, term.of) == ("MeanBackward0", None)


@pytest.mark.parametrize("pick", ["gather", "index"])
@pytest.mark.parametrize("leave_out", ["index", "mask", "select"])
def test_a_pick_counts_its_positions_whatever_leaves_some_of_them_out(
    pick: str, leave_out: str
) -> None:
    rows = Rows.of(6)
    counts = torch.arange(6) > 1

    def loss(logits: Tensor, rows: Rows) -> Tensor:
        logs = logits.log_softmax(-1)
        if pick == "gather":
            picked = -logs.gather(-1, rows.labels[:, None])[:, 0]
        else:
            picked = -logs[torch.arange(6), rows.labels]
        if leave_out == "index":
            return picked[counts].mean()
        if leave_out == "select":
            return picked.masked_select(counts).mean()
        return (picked * counts).sum() / counts.sum()

    (term,) = terms_on(rows, loss)
    assert (term.tokens, term.size) == (4, 6)
