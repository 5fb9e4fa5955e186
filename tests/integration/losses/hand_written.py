"""Losses as people write them, each with the losses of its elements: what its author averages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical

from helpers.training import CLASSES, IGNORED, INPUTS


@dataclass(frozen=True)
class Rows:
    """One micro-batch: ``n`` rows, of which each has a label, a teacher and an advantage."""

    inputs: Tensor  # [n, INPUTS]
    labels: Tensor  # [n]
    mask: Tensor  # [n], 0 or 1
    teacher: Tensor  # [n, CLASSES], probabilities
    advantages: Tensor  # [n]

    @classmethod
    def of(cls, count: int) -> Rows:
        """Rows that are the same in each run; the third one is masked, if there is one."""
        generator = torch.Generator().manual_seed(count)
        mask = torch.ones(count)
        mask[2:3] = 0
        return cls(
            torch.randn(count, INPUTS, generator=generator),
            torch.randint(0, CLASSES, (count,), generator=generator),
            mask,
            torch.randn(count, CLASSES, generator=generator).softmax(-1),
            torch.randn(count, generator=generator),
        )


Loss = Callable[[Tensor, Rows], Tensor]  # of logits [n, CLASSES]


@dataclass(frozen=True)
class Objective:
    """``loss`` is a number, ``tokens`` are the losses that it weighs.

    ``reduced`` is what its outermost mean or sum reduces: the tokens, if it is None.
    """

    loss: Loss
    tokens: Loss
    kind: str
    reduced: Loss | None = None
    of: str | None = None


def entropies(logits: Tensor, rows: Rows) -> Tensor:
    return F.cross_entropy(logits, rows.labels, reduction="none")


def log_probs(logits: Tensor, rows: Rows) -> Tensor:
    return logits.log_softmax(-1).gather(-1, rows.labels[:, None])[:, 0]


def selected_log_probs(logits: Tensor, rows: Rows) -> Tensor:
    """Without the log-probabilities of all classes, to save memory."""
    normalisers = torch.stack([each.logsumexp(-1) for each in logits])
    return logits.gather(-1, rows.labels[:, None])[:, 0] - normalisers


def focal(logits: Tensor, rows: Rows) -> Tensor:
    losses = entropies(logits, rows)
    return (1 - torch.exp(-losses)) ** 2 * losses


def weighted_focal(logits: Tensor, rows: Rows) -> Tensor:
    return 0.25 * focal(logits, rows)


def focal_of_ignored(logits: Tensor, rows: Rows) -> Tensor:
    labels = rows.labels.masked_fill(rows.mask == 0, IGNORED)
    losses = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
    return (1 - torch.exp(-losses)) ** 2 * losses


def preferences(logits: Tensor, rows: Rows) -> Tensor:
    """DPO, with the second half of the classes as the rejected answer."""
    rejected = Rows(rows.inputs, (rows.labels + 1) % CLASSES, *_rest(rows))
    return -F.logsigmoid(0.5 * (log_probs(logits, rows) - log_probs(logits, rejected)))


def smoothed_preferences(logits: Tensor, rows: Rows) -> Tensor:
    """Conservative DPO: two losses of one pair, with weights that add up to 1."""
    rejected = Rows(rows.inputs, (rows.labels + 1) % CLASSES, *_rest(rows))
    margin = log_probs(logits, rows) - log_probs(logits, rejected)
    return -F.logsigmoid(margin) * 0.9 - F.logsigmoid(-margin) * 0.1


def _rest(rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    return rows.mask, rows.teacher, rows.advantages


def divergences(logits: Tensor, rows: Rows) -> Tensor:
    """KL, each entry: [n, CLASSES]."""
    return F.kl_div(logits.log_softmax(-1), rows.teacher.to(logits), reduction="none")


def reverse_divergences(logits: Tensor, rows: Rows) -> Tensor:
    return (logits.softmax(-1) * (logits.log_softmax(-1) - rows.teacher.log())).sum(-1)


def symmetric_divergences(logits: Tensor, rows: Rows) -> Tensor:
    """Jensen-Shannon."""
    student, teacher = logits.softmax(-1), rows.teacher
    middle = (student + teacher) / 2
    ours = (student * (student.log() - middle.log())).sum(-1)
    theirs = (teacher * (teacher.log() - middle.log())).sum(-1)
    return 0.5 * ours + 0.5 * theirs


def clipped(logits: Tensor, rows: Rows) -> Tensor:
    """GRPO: a clipped ratio times advantages, and an estimate of the KL divergence."""
    new = log_probs(logits, rows)
    old = new.detach() - 0.1 * rows.advantages
    ratio = torch.exp(new - old)
    gain = torch.min(ratio * rows.advantages, ratio.clamp(0.8, 1.2) * rows.advantages)
    return -gain + 0.04 * (torch.exp(old - new) - (old - new) - 1)


def smoothed(logits: Tensor, rows: Rows) -> Tensor:
    return F.cross_entropy(logits, rows.labels, label_smoothing=0.1, reduction="none")


def smoothed_by_hand(logits: Tensor, rows: Rows) -> Tensor:
    """Label smoothing as timm writes it."""
    every_class = -logits.log_softmax(-1).mean(-1)
    return -0.9 * log_probs(logits, rows) + 0.1 * every_class


def smoothed_apart(logits: Tensor, rows: Rows) -> Tensor:
    """Label smoothing as transformers writes it: both parts are sums."""
    every_class = -logits.log_softmax(-1)
    picked = every_class.gather(-1, rows.labels[:, None])
    return 0.9 * (picked.sum() / len(logits)) + 0.1 * (every_class.sum() / every_class.numel())


def desirable(logits: Tensor, rows: Rows) -> Tensor:
    """KTO: the desirable answers weigh twice as much, and a micro-batch may have none."""
    chances = log_probs(logits, rows).sigmoid()
    return torch.cat([2 * (1 - chances[1::2]), chances[::2]])


def distances(logits: Tensor, rows: Rows) -> Tensor:
    return ((logits - rows.teacher) ** 2).sum(-1).sqrt()


def half_distances(logits: Tensor, rows: Rows) -> Tensor:
    return 0.5 * distances(logits, rows)


def clamped(logits: Tensor, rows: Rows) -> Tensor:
    return entropies(logits, rows).clamp(max=50.0)


def masked_divergences(logits: Tensor, rows: Rows) -> Tensor:
    return divergences(logits, rows) * rows.mask[:, None]


def chosen(logits: Tensor, rows: Rows) -> Tensor:
    return torch.where(rows.mask > 0, entropies(logits, rows), 0.0)


def in_place(logits: Tensor, rows: Rows) -> Tensor:
    losses = entropies(logits, rows)
    losses.masked_fill_(rows.mask == 0, 0.0)
    return losses


def per_pair(logits: Tensor, rows: Rows) -> Tensor:
    """Means of masked sequences of two tokens: [n / 2]."""
    losses, mask = entropies(logits, rows).view(-1, 2), rows.mask.view(-1, 2)
    return (losses * mask).sum(1) / mask.sum(1)


def hardest(logits: Tensor, rows: Rows) -> Tensor:
    """Online hard example mining."""
    return entropies(logits, rows).topk(max(1, len(logits) // 2)).values


def joined(logits: Tensor, rows: Rows) -> Tensor:
    """Computed in two chunks."""
    chunks = zip(logits.chunk(2), rows.labels.chunk(2), strict=True)
    return torch.cat([F.cross_entropy(x, y, reduction="none") for x, y in chunks])


def _masked(tokens: Loss) -> Loss:
    return lambda logits, rows: (tokens(logits, rows) * rows.mask).sum() / rows.mask.sum()


def _times_mask(tokens: Loss) -> Loss:
    return lambda logits, rows: tokens(logits, rows) * rows.mask


def _mean(tokens: Loss) -> Loss:
    return lambda logits, rows: tokens(logits, rows).mean()


def kl(logits: Tensor, rows: Rows) -> Tensor:
    return divergences(logits, rows).sum(-1)


def kl_div(reduction: str) -> Loss:
    return lambda logits, rows: F.kl_div(
        logits.log_softmax(-1), rows.teacher.to(logits), reduction=reduction
    )


NLL, PICK, MEAN = "NllLossBackward0", "GatherBackward0", "MeanBackward0"
DIVERGENCE = "KlDivergence"

OBJECTIVES: dict[str, Objective] = {
    "focal": Objective(_mean(focal), focal, NLL, of=NLL),
    "focal, sum / n": Objective(lambda x, r: focal(x, r).sum() / len(x), focal, NLL, of=NLL),
    "focal, masked": Objective(_masked(focal), focal, NLL, _times_mask(focal), of=NLL),
    "focal, weighted": Objective(
        lambda x, r: (0.25 * focal(x, r)).mean(), weighted_focal, NLL, of=NLL
    ),
    "focal of ignored": Objective(
        lambda x, r: focal_of_ignored(x, r).sum() / r.mask.sum(), focal_of_ignored, NLL, of=NLL
    ),
    "clamped": Objective(_mean(clamped), clamped, NLL, of=NLL),
    "DPO": Objective(_mean(preferences), preferences, PICK, of=PICK),
    "DPO, smoothed": Objective(_mean(smoothed_preferences), smoothed_preferences, PICK, of=PICK),
    "GRPO": Objective(_masked(clipped), clipped, PICK, _times_mask(clipped), of=PICK),
    "KL, batchmean": Objective(kl_div("batchmean"), kl, DIVERGENCE, divergences),
    "KL, sum": Objective(kl_div("sum"), kl, DIVERGENCE, divergences),
    "KL, mean of sums": Objective(_mean(kl), kl, DIVERGENCE),
    "KL, masked": Objective(_masked(kl), kl, DIVERGENCE, _times_mask(kl)),
    "KL, masked entries": Objective(
        lambda x, r: masked_divergences(x, r).sum() / r.mask.sum(),
        kl,
        DIVERGENCE,
        masked_divergences,
    ),
    "reverse KL": Objective(_mean(reverse_divergences), reverse_divergences, MEAN),
    "Jensen-Shannon": Objective(_mean(symmetric_divergences), symmetric_divergences, MEAN),
    "log-probabilities": Objective(lambda x, r: -log_probs(x, r).mean(), log_probs, PICK),
    "selected logits": Objective(
        lambda x, r: -selected_log_probs(x, r).mean(), selected_log_probs, PICK
    ),
    "policy gradient": Objective(
        lambda x, r: -(log_probs(x, r) * r.advantages).mean(),
        log_probs,
        PICK,
        lambda x, r: log_probs(x, r) * r.advantages,
    ),
    "policy gradient of a distribution": Objective(
        lambda x, r: -(Categorical(logits=x).log_prob(r.labels) * r.advantages).mean(),
        log_probs,
        PICK,
        lambda x, r: log_probs(x, r) * r.advantages,
    ),
    "mask": Objective(_masked(entropies), entropies, NLL, _times_mask(entropies)),
    "in place": Objective(
        lambda x, r: in_place(x, r).sum() / r.mask.sum(), entropies, NLL, in_place
    ),
    "where": Objective(lambda x, r: chosen(x, r).sum() / len(x), entropies, NLL, chosen),
    "boolean mask": Objective(
        lambda x, r: entropies(x, r)[r.mask > 0].mean(),
        entropies,
        NLL,
        lambda x, r: entropies(x, r)[r.mask > 0],
    ),
    "mean per sequence": Objective(_mean(per_pair), entropies, NLL, per_pair),
    "hardest": Objective(_mean(hardest), entropies, NLL, hardest),
    "smoothed": Objective(_mean(smoothed), smoothed, NLL),
    "smoothed by hand": Objective(_mean(smoothed_by_hand), smoothed_by_hand, PICK, of=PICK),
    "KTO": Objective(_mean(desirable), desirable, PICK, of=PICK),
    "KTO, nanmean": Objective(lambda x, r: distances(x, r).nanmean(), distances, "NansumBackward0"),
    "distance": Objective(_mean(distances), distances, MEAN),
    "half a distance": Objective(lambda x, r: (0.5 * distances(x, r)).mean(), half_distances, MEAN),
}
