"""Losses that compare the examples of a micro-batch with each other, or with cached ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradledger.observers.below_losses.correlations import adds_up_samples
from gradledger.observers.below_losses.sample_counts import averaged_rows
from gradledger.observers.losses.autograd_graph import find_losses
from gradledger.observers.losses.compared_features import (
    compares_examples,
    only_part,
)


def _embeddings() -> Any:
    torch.manual_seed(0)
    return F.normalize(nn.Linear(4, 3)(torch.randn(30, 4)))


def _triplets(distances: Any) -> Any:
    anchor, positive, negative = torch.randint(0, 30, (3, 50))
    margins = F.relu(distances[anchor, positive] - distances[anchor, negative] + 0.5)
    return margins[margins > 0].mean()


def _compares(loss: Any) -> bool:
    (term,) = find_losses(loss.grad_fn)
    return compares_examples(term)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_triplets_of_the_distances_within_a_micro_batch_are_comparisons(p: float) -> None:
    rows = _embeddings()
    assert _compares(_triplets(torch.cdist(rows, rows, p=p)) / 4)
    assert _compares(_triplets(1 - rows @ rows.T) / 4)
    assert _compares(_triplets(1 - torch.mm(rows, rows.transpose(0, 1))))
    left, right = F.normalize(rows), F.normalize(rows)  # as pytorch-metric-learning does
    assert _compares(_triplets(torch.cdist(left, right, p=p)))


def test_examples_that_integer_indices_pick_twice_are_comparisons() -> None:
    rows = _embeddings()
    anchor, positive, negative = torch.randint(0, 30, (3, 50))
    assert _compares(F.triplet_margin_loss(rows[anchor], rows[positive], rows[negative]) / 4)
    distances = (rows[anchor] - rows[positive]).square().sum(1)
    assert _compares(F.relu(distances - (rows[anchor] - rows[negative]).square().sum(1)).mean())
    left, right = (torch.index_select(rows, 0, of) for of in (anchor, positive))
    assert _compares(F.relu((left * right).sum(1)).mean())


def test_the_risk_sets_of_a_survival_loss_are_comparisons() -> None:
    risk, events = _embeddings()[:, 0], torch.arange(30) % 2
    assert _compares(((torch.logcumsumexp(risk, 0) - risk) * events).sum() / events.sum())
    assert _compares(((risk.exp().cumsum(0).log() - risk) * events).sum() / events.sum())
    steps = _embeddings().cumsum(1)  # along each example
    assert not _compares(steps.square().mean())


def test_pairs_with_a_memory_of_features_are_comparisons() -> None:
    rows, memory = _embeddings(), F.normalize(torch.randn(64, 3))
    anchor, positive = torch.randint(0, 30, (90,)), torch.randint(0, 64, (90,))
    similarities = rows @ memory.T
    pairs = similarities[anchor, positive] - similarities.logsumexp(1)[anchor]
    assert _compares(F.softplus(-pairs).mean())
    positions = torch.rand(30, 3).gt(0.2).nonzero(as_tuple=True)
    assert not _compares((rows.exp()[positions] - 1).square().mean())
    targets = torch.randint(0, 64, (30,))  # one for each row: a cross entropy over the memory
    assert not _compares(F.softplus(-similarities[torch.arange(30), targets]).mean())


def test_sums_of_the_examples_of_each_class_are_comparisons() -> None:
    rows, proxies = _embeddings(), torch.randn(5, 3, requires_grad=True)
    positive = torch.arange(30)[:, None] % 5 == torch.arange(5)
    similarities = rows @ F.normalize(proxies).T
    masked = similarities.masked_fill(~positive, -100.0)
    assert _compares(torch.logsumexp(masked, 0).sum() / 5)
    assert _compares(torch.log(1 + similarities.exp().where(positive, 0.0).sum(0)).sum() / 5)
    assert not _compares(torch.logsumexp(masked, 1).sum() / 30)
    assert not _compares(torch.logsumexp(proxies @ rows.T, 0).sum() / 30)  # over the classes
    heads = torch.stack([rows, rows.exp()]).log_softmax(-1)
    assert not _compares(torch.logsumexp(heads, 0)[:, 0].sum() / 30)  # over an ensemble
    assert not _compares(torch.log(1 + similarities.exp().sum(1)).sum() / 30)


def test_rows_that_a_mask_selects_and_sums_over_neighbours_compare_no_examples() -> None:
    rows, mask = _embeddings(), torch.arange(30) % 3 == 0
    source, target = torch.randint(0, 30, (2, 50))
    assert not _compares((rows[mask].exp() * rows[mask]).mean())
    assert not _compares((F.relu(rows[source]) * rows[source].exp()).mean())
    messages = torch.zeros_like(rows).index_add(0, target, rows[source] * rows[target])
    assert not _compares(F.relu(messages).mean())


def test_a_product_with_a_weight_or_with_other_rows_compares_no_examples() -> None:
    rows, weight = _embeddings(), torch.randn(5, 3, requires_grad=True)
    picked = torch.randint(0, 5, (20,))
    assert not _compares((rows @ weight.T)[picked, picked % 5].square().mean())
    assert not _compares(F.relu(torch.cdist(rows, weight)).mean())
    assert not _compares(F.relu(rows).mean())


def _contrastive(*parts: Any) -> Any:
    """A loss over joined features, as of CLIP."""
    features = F.normalize(torch.cat(parts), dim=-1)
    return F.cross_entropy(features @ features.T, torch.arange(len(features)))


def test_of_cached_features_one_part_has_a_gradient() -> None:
    live, temperature = nn.Linear(8, 5)(torch.randn(4, 8)), torch.ones(1, requires_grad=True)
    cached = live.detach()
    assert only_part(_contrastive(cached, live, cached).grad_fn) == (1, 3, 0)
    assert only_part(_contrastive(cached, live * temperature).grad_fn) == (1, 2, 0)
    assert only_part((_contrastive(live, cached) * temperature).sum().grad_fn) == (0, 2, 1)
    layer = nn.Linear(5, 5, bias=False)
    behind = layer(torch.cat([live, cached])).sum()
    assert only_part(behind.grad_fn) == (0, 2, layer.weight.numel())
    assert only_part(nn.Linear(5, 1)(torch.cat([live, cached])).sum().grad_fn) is None
    assert only_part(_contrastive(live, live).grad_fn) is None
    two = _contrastive(live, cached) + _contrastive(cached, live)
    assert only_part(two.grad_fn) is None
    assert only_part(F.cross_entropy(live, torch.randint(5, (4,))).grad_fn) is None


def _averaged(loss: Any) -> int | None:
    (term,) = find_losses(loss.grad_fn)
    assert term.elements is not None
    return averaged_rows(term.node, term.elements.shape)


def test_rows_behind_the_elements_of_a_statistic() -> None:
    rows = torch.randn(30, 4, requires_grad=True)
    load = rows.softmax(-1).mean(0)
    assert _averaged(load.square().sum()) == 30
    assert _averaged((load * load.log()).sum()) == 30
    assert _averaged(rows.reshape(5, 6, 4).softmax(-1).mean((0, 1)).square().sum()) == 30
    assert _averaged(F.relu(1 - rows.std(0)).sum()) == 30


def test_rows_that_no_statistic_averages() -> None:
    rows = torch.randn(30, 4, requires_grad=True)
    assert _averaged(rows.square().sum()) is None
    assert _averaged(rows.mean(1).square().sum()) is None  # one of each row
    assert _averaged(torch.stack([rows, 2 * rows]).mean(0).square().sum()) is None  # two models
    assert _averaged((rows - rows.mean(0)).square().sum()) is None
    assert _averaged((rows.mean(0) * rows[0]).square().sum()) is None


def test_only_a_product_of_centred_rows_is_of_sums_over_examples() -> None:
    first, second = (nn.Linear(4, 3)(torch.randn(30, 4)) for _ in range(2))
    centred = [rows - rows.mean(0) for rows in (first, second)]
    assert adds_up_samples((centred[0].T @ (centred[1] / 2)).pow(2).grad_fn)
    normalised = nn.BatchNorm1d(3)(first)
    assert adds_up_samples((normalised.T @ normalised).grad_fn)
    assert adds_up_samples((torch.einsum("bi,bj->ij", *centred) / 30 - 1).pow(2).grad_fn)
    assert adds_up_samples(torch.einsum("bi,bj->ji", *centred).grad_fn)
    assert adds_up_samples(torch.tensordot(centred[0], centred[1], dims=([0], [0])).grad_fn)
    assert adds_up_samples((centred[0].transpose(0, 1) @ centred[1]).grad_fn)
    assert adds_up_samples(torch.cov(first.T).grad_fn)
    assert adds_up_samples(torch.corrcoef(first.T).abs().grad_fn)
    weight = torch.tanh(nn.Linear(2, 12)(torch.randn(2))).view(4, 3)  # of a hypernetwork
    columns = torch.tanh(nn.Linear(5, 4)(torch.randn(3, 5)).T)
    assert not adds_up_samples((weight.T @ columns).grad_fn)
    assert not adds_up_samples((first.T @ second).grad_fn)
    by_feature = [rows - rows.mean(1, keepdim=True) for rows in (first, second)]
    assert not adds_up_samples((by_feature[0].T @ by_feature[1]).grad_fn)
    square = torch.eye(3, requires_grad=True) * 2  # three examples of three features
    centred_square = square - square.mean(0)
    assert adds_up_samples((centred_square.T @ centred_square).grad_fn)
    assert not adds_up_samples((centred_square @ centred_square.T).grad_fn)
    assert not adds_up_samples(torch.cov(first).grad_fn)  # of examples, over their features
    assert not adds_up_samples(torch.einsum("bi,ci->bc", *by_feature).grad_fn)
    assert not adds_up_samples(torch.einsum("bi,ci->bc", *centred).grad_fn)
    batches = (centred[0].view(3, 10, 3), centred[1].view(3, 10, 3))
    assert not adds_up_samples(torch.einsum("nbi,nbj->nij", *batches).grad_fn)  # of each sample
