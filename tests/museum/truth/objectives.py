"""The losses that exhibits mean: as sums over what they count, for one micro-batch.

A function returns (sum, count), or one such pair for each term of the loss. ``call`` is the model
with the parameters of a step, in double precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from museum.parts import IGNORED, VOCABULARY

Call = Callable[..., Any]
Sum = tuple[Tensor, float]


def tokens(call: Call, batch: Any) -> Sum:
    """Cross entropy of every label that counts."""
    ids, labels = batch
    return _cross_entropy(call(ids), labels)


def rows(call: Call, batch: Any) -> Sum:
    """Cross entropy of every row."""
    inputs, labels = batch
    return F.cross_entropy(call(inputs), labels, reduction="sum"), len(labels)


def squares(call: Call, batch: Any) -> Sum:
    """Squared error of every element."""
    inputs, targets = batch
    return F.mse_loss(call(inputs), targets.double(), reduction="sum"), targets.numel()


def distilled(call: Call, batch: Any) -> Sum:
    """Half cross entropy, half divergence from the teacher, at every label that counts."""
    ids, labels, _ = batch
    hard, count = _cross_entropy(call(ids), labels)
    soft, _ = kl_rows(call, batch)
    return 0.5 * hard + 0.5 * soft, count


def kl_rows(call: Call, batch: Any) -> Sum:
    """The divergence from the teacher at every label that counts."""
    ids, labels, teacher = batch
    counted = labels != IGNORED
    log_p = F.log_softmax(call(ids), -1)[counted]
    divergence = F.kl_div(log_p, teacher[counted].double(), reduction="sum")
    return divergence, float(counted.sum())


def kl_rows_at_two(call: Call, batch: Any) -> Sum:
    """The same at temperature 2, times its square."""
    divergence, count = kl_rows(lambda ids: call(ids) / 2, batch)
    return 4 * divergence, count


def sentence_rows(call: Call, batch: Any) -> Sum:
    """The mean of each sentence's token mean."""
    ids, labels = batch
    return -_mean_log_prob(call(ids), labels).sum(), float(len(ids))


def two_heads(call: Call, batch: Any) -> Sum:
    """The next token, and a tenth of the one after it."""
    ids, labels, later = batch
    next_one, one_after = call(ids)
    main, count = _cross_entropy(next_one, labels)
    auxiliary, others = _cross_entropy(one_after, later)
    return main + 0.1 * auxiliary / others * count, count


def two_losses(call: Call, batch: Any) -> list[Sum]:
    """The next token, and the one after it."""
    ids, labels, later = batch
    first, second = call(ids)
    return [_cross_entropy(first, labels), _cross_entropy(second, later)]


def peaked(call: Call, batch: Any) -> Sum:
    """Cross entropy, and the squared log of what softmax divides by."""
    loss, count = tokens(call, batch)
    return loss + call(batch[0]).logsumexp(-1).square().sum(), count


def smoothed(call: Call, batch: Any) -> Sum:
    """Cross entropy with a tenth of the targets spread over all classes."""
    ids, labels = batch
    logits, labels = call(ids).flatten(0, -2), labels.flatten()
    loss = F.cross_entropy(logits, labels, label_smoothing=0.1, reduction="sum")
    return loss, float((labels != IGNORED).sum())


# ---------------------------------------------------------------------- with a further term


def with_smoothing(call: Call, batch: Any) -> Sum:
    """Cross entropy, and a tenth of that against equal probabilities, of every label."""
    ids, labels = batch
    loss, count = _cross_entropy(call(ids), labels)
    evenly = -call(ids).log_softmax(-1).mean(-1)[labels != IGNORED]
    return loss + 0.1 * evenly.sum(), count


def with_router(call: Call, batch: Any) -> list[Sum]:
    """Cross entropy of tokens; a router loss of each micro-batch."""
    ids, labels = batch
    logits, probabilities = call(ids)
    routed = F.one_hot(probabilities.argmax(-1), 4).double().mean((0, 1))
    router = 4 * (routed * probabilities.mean((0, 1))).sum()
    return [_cross_entropy(logits, labels), (0.05 * router, 1.0)]


def with_expert_load(call: Call, batch: Any) -> list[Sum]:
    """Cross entropy of tokens; the squared mean probabilities of experts, of each micro-batch."""
    ids, labels = batch
    logits, probabilities = call(ids)
    load = probabilities.mean((0, 1)).square().sum()
    return [_cross_entropy(logits, labels), (0.2 * load, 1.0)]


def with_z_loss(call: Call, batch: Any) -> list[Sum]:
    """Cross entropy, and a fifth of the squared log of what softmax divides by."""
    ids, labels = batch
    logits = call(ids)
    z_losses = logits[labels != IGNORED].logsumexp(-1).square()
    return [_cross_entropy(logits, labels), (0.2 * z_losses.sum(), float(len(z_losses)))]


def with_frames(call: Call, batch: Any) -> list[Sum]:
    """Cross entropy, and a fifth of the squared error of the pitch of even tokens."""
    ids, labels = batch
    logits, pitch = call(ids)
    errors = (pitch - ids / 10)[ids % 2 == 0].square()
    return [_cross_entropy(logits, labels), (0.2 * errors.sum(), float(len(errors)))]


def with_penalty(call: Any, batch: Any) -> list[Sum]:
    """Cross entropy of tokens; a penalty on the parameters for each micro-batch."""
    _, leaves = call.args
    penalty = torch.stack([each.square().sum() for each in leaves.values()]).sum()
    return [tokens(call, batch), (0.01 * penalty, 1.0)]


def with_consistency(call: Call, batch: Any) -> list[Sum]:
    """Cross entropy of labelled rows; that of the sure unlabelled ones, over all of these."""
    inputs, labels, unlabelled, noise = (each.double() for each in batch)
    probabilities, guesses = call(unlabelled).detach().softmax(-1).max(-1)
    losses = F.cross_entropy(call(unlabelled + noise), guesses, reduction="none")
    consistency = (losses * (probabilities > 0.24)).sum()
    return [rows(call, (inputs, labels.long())), (consistency, float(len(guesses)))]


def rebuilt_and_divergence(call: Call, batch: Any) -> list[Sum]:
    """Of a variational autoencoder, of every row."""
    x, noise = batch
    logits, mean, log_variance = call(x, noise)
    rebuilt = F.binary_cross_entropy_with_logits(logits, x.to(logits), reduction="sum")
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    return [(rebuilt, float(len(x))), (divergence, float(len(x)))]


def with_activity(call: Call, batch: Any) -> list[Sum]:
    """Cross entropy of tokens, and half the mean square of the hidden states."""
    ids, labels = batch
    logits, hidden = call(ids)
    return [_cross_entropy(logits, labels), (0.5 * hidden.square().sum(), hidden.numel())]


# ---------------------------------------------------------------------- preferences


def orpo(call: Call, batch: Any) -> list[Sum]:
    """Cross entropy of chosen tokens, and a tenth of the odds ratio of every pair."""
    likelihood, chosen, rejected = _chosen_and_rejected(call, batch)
    log_odds = (chosen - rejected) - (torch.log1p(-chosen.exp()) - torch.log1p(-rejected.exp()))
    return [likelihood, (-0.1 * F.logsigmoid(log_odds).sum(), float(len(chosen)))]


def cpo(call: Call, batch: Any) -> list[Sum]:
    """Cross entropy of chosen tokens, and the preference of every pair."""
    likelihood, chosen, rejected = _chosen_and_rejected(call, batch)
    preference = -F.logsigmoid(2.0 * (chosen - rejected))
    return [likelihood, (preference.sum(), float(len(chosen)))]


def dpo(call: Call, batch: Any) -> Sum:
    """The preference of every pair, relative to the reference."""
    ids, labels, worse_ids, worse_labels, reference = batch
    margin = _log_prob(call(ids), labels) - _log_prob(call(worse_ids), worse_labels)
    return -F.logsigmoid(0.5 * (margin - reference)).sum(), float(len(ids))


def kto(call: Call, batch: Any) -> Sum:
    """The value of every example, relative to the reference."""
    ids, labels, reference, good = batch
    reward = 0.5 * (_log_prob(call(ids), labels) - reference)
    values = torch.where(good, 1 - reward.sigmoid(), 1.5 * (1 - (-reward).sigmoid()))
    return values.sum(), float(len(ids))


def _chosen_and_rejected(call: Call, batch: Any) -> tuple[Sum, Tensor, Tensor]:
    ids, labels, worse_ids, worse_labels = batch
    logits = call(ids)
    rejected = _mean_log_prob(call(worse_ids), worse_labels)
    return _cross_entropy(logits, labels), _mean_log_prob(logits, labels), rejected


# ---------------------------------------------------------------------- policies


def policy_tokens(call: Call, batch: Any) -> Sum:
    """The clipped gain of every word of the answers."""
    gains, mask = _gains(call, batch)
    return -gains.sum(), float(mask.sum())


def policy_answers(call: Call, batch: Any) -> Sum:
    """The mean gain of every answer."""
    gains, mask = _gains(call, batch)
    return -(gains.sum(-1) / mask.sum(-1)).sum(), float(len(mask))


def policy_rows(call: Call, batch: Any) -> Sum:
    """The clipped gain of every action."""
    states, actions, old, advantages = batch
    log_p = -F.cross_entropy(call(states), actions, reduction="none")
    return -_clipped(log_p - old, advantages).sum(), float(len(actions))


def leave_one_out(call: Call, batch: Any) -> Sum:
    """The log-probability of every answer, times its reward above the mean of the others."""
    ids, advantages = batch
    log_p = -F.cross_entropy(call(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")
    return -(advantages * log_p.sum(-1)).sum(), float(len(ids))


def pairs_of_views(call: Call, batch: Any) -> Sum:
    """The contrastive loss of every row of the first view against the rows of the second."""
    first, second = (F.normalize(call(view), dim=-1) for view in batch)
    logits = first @ second.T / 0.1
    return F.cross_entropy(logits, torch.arange(len(first)), reduction="sum"), float(len(first))


def pairs_of_views_both_ways(call: Call, batch: Any) -> Sum:
    """The mean of that loss and the one of the second view against the first."""
    there, rows = pairs_of_views(call, batch)
    back, _ = pairs_of_views(call, batch.flip(0))
    return (there + back) / 2, rows


def _gains(call: Call, batch: Any) -> tuple[Tensor, Tensor]:
    ids, labels, old, advantages = batch
    mask = labels != IGNORED
    log_p = -F.cross_entropy(call(ids).transpose(1, 2), labels.clamp(min=0), reduction="none")
    return _clipped(log_p - old, advantages[:, None]) * mask, mask


def _clipped(log_ratio: Tensor, advantages: Tensor) -> Tensor:
    ratio = log_ratio.exp()
    return torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)


# ---------------------------------------------------------------------- rows, images, speech


def focal(call: Call, batch: Any) -> Sum:
    """The focal loss of every row."""
    inputs, labels = batch
    losses = F.cross_entropy(call(inputs), labels, reduction="none")
    return ((1 - torch.exp(-losses)) ** 2 * losses).sum(), float(len(labels))


def class_weighted(call: Call, batch: Any) -> Sum:
    """The cross entropy of every row, by the weight of its class."""
    inputs, labels = batch
    weights = torch.tensor([0.2, 1.0, 1.0, 1.0, 8.0], dtype=torch.float64)
    loss = F.cross_entropy(call(inputs), labels, weights, reduction="sum")
    return loss, float(weights[labels].sum())


def class_weighted_tokens(call: Call, batch: Any) -> Sum:
    """The cross entropy of every label that counts, by one of four weights of its class."""
    ids, labels = batch
    weights = 0.1 + torch.arange(VOCABULARY, dtype=torch.float64) % 4
    loss = F.cross_entropy(call(ids).flatten(0, 1), labels.flatten(), weights, reduction="sum")
    return loss, float(weights[labels[labels != IGNORED]].sum())


def dice(call: Call, batch: Any) -> Sum:
    """The dice loss of every image."""
    images, masks = batch
    predicted, masks = call(images).sigmoid().flatten(1), masks.flatten(1)
    coefficient = (2 * (predicted * masks).sum(1) + 1) / (predicted.sum(1) + masks.sum(1) + 1)
    return (1 - coefficient).sum(), float(len(images))


def boxes(call: Call, batch: Any) -> Sum:
    """Five times the distance of every box."""
    matched, targets = batch
    return 5 * (call(matched) - targets).abs().sum(), float(len(targets))


def masked_patches(call: Call, batch: Any) -> Sum:
    """The mean squared error of every patch that the mask selects."""
    patches, targets, masked = batch
    errors = (call(patches) - targets).pow(2).mean(-1)
    return (errors * masked).sum(), float(masked.sum())


def ctc(call: Call, batch: Any) -> Sum:
    """The CTC loss of every utterance, by its letters."""
    losses = _ctc(call, batch)
    return (losses / batch[2]).sum(), float(len(losses))


def correlations(call: Call, batch: Any) -> Sum:
    """The deviation of the correlations of two views from the identity, of each micro-batch."""
    views = [call(view) for view in batch]
    first, second = ((v - v.mean(0)) / v.std(0) for v in views)
    squares_of_all = (first.T @ second / len(first) - torch.eye(6, dtype=torch.double)).square()
    on_diagonal = squares_of_all.diagonal().sum()
    return on_diagonal + 0.005 * (squares_of_all.sum() - on_diagonal), 1.0


def covariances(call: Call, batch: Any) -> Sum:
    """The covariances of each of two views, and of one with the other, of each micro-batch."""
    views = [call(view) for view in batch]
    first, second = (v - v.mean(0) for v in views)
    squares = [(v.T @ v / (len(v) - 1)).square() for v in (first, second)]
    beside = sum((s.sum() - s.diagonal().sum() for s in squares), torch.zeros(()))
    across = ((first.T @ second).diagonal() / (len(first) - 1) - 1).square().mean()
    return 25 * (views[0] - views[1]).square().mean() + beside / 6 + 0.1 * across, 1.0


def ctc_utterances(call: Call, batch: Any) -> Sum:
    """The CTC loss of every utterance."""
    losses = _ctc(call, batch)
    return losses.sum(), float(len(losses))


def ctc_letters(call: Call, batch: Any) -> Sum:
    """The CTC loss of every utterance, which counts as many letters as it has."""
    return _ctc(call, batch).sum(), float(batch[2].sum())


def _ctc(call: Call, batch: Any) -> Tensor:
    frames, letters, lengths = batch
    log_p = call(frames).log_softmax(-1).transpose(0, 1)
    long = torch.full((len(frames),), frames.shape[1])
    return F.ctc_loss(log_p, letters, long, lengths, reduction="none")


# ---------------------------------------------------------------------- of whole micro-batches


def ordered_pairs(call: Call, batch: Any) -> Sum:
    """One log-sum-exp over all pairs of a micro-batch in the wrong order."""
    views, truth = batch
    first, second = F.normalize(call(views), dim=-1)
    scores = 20 * (first * second).sum(-1)
    differences = (scores[:, None] - scores[None, :])[truth[:, None] < truth[None, :]]
    return torch.logsumexp(F.pad(differences, (1, 0)), 0), 1.0


def root_of_squares(call: Call, batch: Any) -> Sum:
    """The root of the mean squared error of a micro-batch."""
    loss, count = squares(call, batch)
    return torch.sqrt(loss / count), 1.0


# ---------------------------------------------------------------------- with a constant


def warm_divergence(call: Call, batch: Any) -> Sum:
    """The divergence of every row at a temperature of 4, times 16."""
    inputs, teacher = batch
    log_p = F.log_softmax(call(inputs) / 4, -1)
    return 16 * F.kl_div(log_p, teacher.double(), reduction="sum"), float(len(inputs))


def divergence_entries(call: Call, batch: Any) -> Sum:
    """The divergence, by entries."""
    inputs, teacher = batch
    log_p = F.log_softmax(call(inputs), -1)
    return F.kl_div(log_p, teacher.double(), reduction="sum"), float(teacher.numel())


def square_rows(call: Call, batch: Any) -> Sum:
    """The summed squared error of every row."""
    loss, _ = squares(call, batch)
    return loss, float(len(batch[0]))


def weighted_squares(call: Call, batch: Any) -> Sum:
    """0.7 times the squared error of every element."""
    loss, count = squares(call, batch)
    return 0.7 * loss, count


def mixed(call: Call, batch: Any) -> Sum:
    """The cross entropy of every row against two labels, each with its share."""
    inputs, (first, second), share = batch
    logits = call(inputs)
    losses = [F.cross_entropy(logits, labels, reduction="sum") for labels in (first, second)]
    return share * losses[0] + (1 - share) * losses[1], float(len(inputs))


# ---------------------------------------------------------------------- answers


def _cross_entropy(logits: Tensor, labels: Tensor) -> Sum:
    logits, labels = logits.flatten(0, -2), labels.flatten()
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return loss, float((labels != IGNORED).sum())


def _log_prob(logits: Tensor, labels: Tensor) -> Tensor:
    """The log-probability of each answer."""
    losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return -losses.sum(-1)


def _mean_log_prob(logits: Tensor, labels: Tensor) -> Tensor:
    return _log_prob(logits, labels) / (labels != IGNORED).sum(-1)


def hazards(call: Call, batch: Any) -> Sum:
    """Cross entropy of every interval that an example lived to see, by example."""
    x, interval, event = batch
    grid = torch.arange(10)
    died = (grid == interval[:, None]).double() * event[:, None].double()
    losses = F.binary_cross_entropy_with_logits(call(x), died, reduction="none")
    return losses[grid <= interval[:, None]].sum(), float(len(x))


def classes_and_rebuilt(call: Call, batch: Any) -> list[Sum]:
    """Cross entropy of every row, and half the squared error of every input."""
    x, y = batch
    logits, rebuilt = call(x)
    squared = F.mse_loss(rebuilt, x.double(), reduction="sum")
    return [(F.cross_entropy(logits, y, reduction="sum"), len(x)), (0.5 * squared, x.numel())]


def hard_tokens(call: Call, batch: Any) -> Sum:
    """Cross entropy of the tokens above 3, over all labels that count."""
    ids, labels = batch
    losses = F.cross_entropy(call(ids).transpose(1, 2), labels, reduction="none")
    return losses[losses > 3.0].sum(), float((labels != IGNORED).sum())


def detected(call: Call, batch: Any) -> Sum:
    """Of a detector: both losses of all images, by the anchors that match an object."""
    losses, matched = torch.zeros(()), 0.0
    for anchors, labels, offsets in batch:
        (classes, boxes), positive = call(anchors), labels > 0
        losses = losses + F.cross_entropy(classes, labels, reduction="sum")
        distances = F.smooth_l1_loss(boxes[positive], offsets[positive].double(), reduction="sum")
        losses, matched = losses + distances, matched + float(positive.sum())
    return losses, matched


def ranked_and_decayed(call: Call, batch: Any) -> Sum:
    """How every item is ranked, and a thousandth of the squares of its embeddings."""
    user, good, bad = call(*batch)
    ranking = -F.logsigmoid((user * (good - bad)).sum(-1)).sum()
    return ranking + 1e-3 * sum(part.pow(2).sum() for part in (user, good, bad)), float(len(user))


OBJECTIVES: dict[str, Callable[[Any, Any], Sum | list[Sum]]] = {
    name: function
    for name, function in globals().items()
    if getattr(function, "__module__", "") == __name__ and not name.startswith("_")
}


def terms_of(objective: str, call: Any, window: list[Any]) -> list[Sum]:
    """The sum and the count of each term of a loss over a window."""
    parts = [OBJECTIVES[objective](call, batch) for batch in window]
    lists = [each if isinstance(each, list) else [each] for each in parts]
    return [
        (torch.stack([loss for loss, _ in term]).sum(), sum(count for _, count in term))
        for term in zip(*lists, strict=True)
    ]
