"""What each objective is: as the text of a script, and as the loss of every element (truth).

An element is what a mean of the objective divides by: a token, a row, a pair. A script holds
``mean`` or ``total`` of one micro-batch and ``count``, in the words that people use; ``elements``
says the same independently, element by element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

INPUTS, HIDDEN, CLASSES = 8, 16, 7
IGNORED = -100

Batch = tuple[Tensor, ...]
Elements = tuple[Tensor, Tensor]  # the loss of each, and its mass: what it counts in a mean


@dataclass(frozen=True)
class Objective:
    """``setup`` precedes the others; all speak of ``outputs`` and the ``batch`` of a script."""

    batch: str  # the kind of micro-batch, a key of ``BATCHES``
    mean: str
    total: str
    count: str
    elements: Callable[[Tensor, Batch], Elements]
    setup: str = ""


# Texts of the functions that make a micro-batch from the lengths of its rows.
BATCHES = {
    "sentences": '''
def micro_batch(lengths, generator):
    """Padded sentences: features, and labels with -100 where there is no token."""
    features = torch.randn(len(lengths), max(lengths), 8, generator=generator)
    labels = torch.randint(0, 7, features.shape[:2], generator=generator)
    for row, length in enumerate(lengths):
        labels[row, length:] = -100
    return features, labels
''',
    "prompted": '''
def micro_batch(lengths, generator):
    """Padded sentences after a prompt of one position, which no label belongs to."""
    features = torch.randn(len(lengths), 1 + max(lengths), 8, generator=generator)
    labels = torch.randint(0, 7, features.shape[:2], generator=generator)
    labels[:, 0] = -100
    for row, length in enumerate(lengths):
        labels[row, 1 + length :] = -100
    return features, labels
''',
    "labels": '''
def micro_batch(lengths, generator):
    """One row for each token."""
    features = torch.randn(sum(lengths), 8, generator=generator)
    return features, torch.randint(0, 7, (sum(lengths),), generator=generator)
''',
    "values": '''
def micro_batch(lengths, generator):
    """A regression: seven values for each row."""
    features = torch.randn(sum(lengths), 8, generator=generator)
    return features, torch.randn(sum(lengths), 7, generator=generator)
''',
    "bits": '''
def micro_batch(lengths, generator):
    """Seven yes-or-no answers for each row."""
    features = torch.randn(sum(lengths), 8, generator=generator)
    return features, torch.randint(0, 2, (sum(lengths), 7), generator=generator).float()
''',
    "teacher": '''
def micro_batch(lengths, generator):
    """The probabilities of a teacher for each row."""
    features = torch.randn(sum(lengths), 8, generator=generator)
    return features, torch.randn(sum(lengths), 7, generator=generator).softmax(-1)
''',
    "actions": '''
def micro_batch(lengths, generator):
    """States, actions and their advantages."""
    features = torch.randn(sum(lengths), 8, generator=generator)
    actions = torch.randint(0, 7, (sum(lengths),), generator=generator)
    return features, actions, torch.randn(sum(lengths), generator=generator)
''',
    "pairs": '''
def micro_batch(lengths, generator):
    """Features of a prompt, with a preferred and a rejected answer."""
    features = torch.randn(sum(lengths), 8, generator=generator)
    chosen = torch.randint(0, 7, (sum(lengths),), generator=generator)
    return features, chosen, (chosen + 1) % 7
''',
    "views": '''
def micro_batch(lengths, generator):
    """Two views of each row; the first of one belongs to the second of the same."""
    features = torch.randn(sum(lengths), 2, 8, generator=generator)
    return features, torch.arange(sum(lengths))
''',
    "speech": '''
def micro_batch(lengths, generator):
    """Eight frames for each row, and its letters: two to four."""
    rows = sum(lengths)
    features = torch.randn(rows, 8, 8, generator=generator)
    letters = torch.randint(2, 5, (rows,), generator=generator)
    return features, torch.randint(1, 7, (rows, 4), generator=generator), letters
''',
}


def _even(losses: Tensor) -> Elements:
    losses = losses.flatten()
    return losses, torch.ones_like(losses)


def _cross_entropy(outputs: Tensor, labels: Tensor, **options: Any) -> Tensor:
    outputs, labels = outputs.flatten(0, -2), labels.flatten()
    valid = labels != IGNORED
    return F.cross_entropy(outputs[valid], labels[valid], reduction="none", **options)


def _class_weighted(outputs: Tensor, batch: Batch) -> Elements:
    weights = torch.linspace(0.5, 2, CLASSES, dtype=outputs.dtype)[batch[1]]
    return _cross_entropy(outputs, batch[1]), weights


def _focal(outputs: Tensor, batch: Batch) -> Elements:
    losses = _cross_entropy(outputs, batch[1])
    return _even((1 - torch.exp(-losses)) ** 2 * losses)


def _divergence(outputs: Tensor, batch: Batch) -> Elements:
    log_p = F.log_softmax(outputs, -1)
    return _even(F.kl_div(log_p, batch[1].to(log_p), reduction="none").sum(-1))


def _policy(outputs: Tensor, batch: Batch) -> Elements:
    return _even(_cross_entropy(outputs, batch[1]) * batch[2])


def _preference(outputs: Tensor, batch: Batch) -> Elements:
    chosen, rejected = (-_cross_entropy(outputs, labels) for labels in batch[1:])
    return _even(-F.logsigmoid(0.5 * (chosen - rejected)))


def _contrastive(outputs: Tensor, batch: Batch) -> Elements:
    first, other = F.normalize(outputs, dim=-1).unbind(1)
    return _even(F.cross_entropy(first @ other.T / 0.2, batch[1], reduction="none"))


def _ctc(outputs: Tensor, batch: Batch) -> Elements:
    return _even(_ctc_of_letters(outputs, batch)[0])


def _ctc_of_letters(outputs: Tensor, batch: Batch) -> Elements:
    """Each utterance counts as much as it has letters."""
    log_probs, letters = outputs.log_softmax(-1).transpose(0, 1), batch[2]
    frames = torch.full((len(letters),), len(log_probs))
    losses = F.ctc_loss(log_probs, batch[1], frames, letters, reduction="none")
    return losses / letters, letters.to(losses)


_CTC_SETUP = """
log_probs, letters = outputs.log_softmax(-1).transpose(0, 1), batch[2]
frames = torch.full((len(letters),), len(log_probs))
"""
_TOKENS = "(labels != -100).sum()"
_FLAT = "outputs.flatten(0, 1), labels.flatten()"
_SHIFTED = "outputs[:, :-1].flatten(0, 1), labels[:, 1:].flatten()"

OBJECTIVES = {
    "cross_entropy": Objective(
        "labels",
        "F.cross_entropy(outputs, labels)",
        'F.cross_entropy(outputs, labels, reduction="sum")',
        "len(labels)",
        lambda outputs, batch: _even(_cross_entropy(outputs, batch[1])),
    ),
    "ignore_index": Objective(
        "sentences",
        f"F.cross_entropy({_FLAT})",
        f'F.cross_entropy({_FLAT}, ignore_index=-100, reduction="sum")',
        _TOKENS,
        lambda outputs, batch: _even(_cross_entropy(outputs, batch[1])),
    ),
    "next_token": Objective(
        "prompted",
        f"F.cross_entropy({_SHIFTED})",
        f'F.cross_entropy({_SHIFTED}, reduction="sum")',
        _TOKENS,
        lambda outputs, batch: _even(_cross_entropy(outputs[:, :-1], batch[1][:, 1:])),
    ),
    "masked": Objective(
        "sentences",
        "(losses * mask).sum() / mask.sum()",
        "(losses * mask).sum()",
        _TOKENS,
        lambda outputs, batch: _even(_cross_entropy(outputs, batch[1])),
        """
mask = (labels != -100).float()
losses = F.cross_entropy(outputs.transpose(1, 2), labels.clamp(min=0), reduction="none")
""",
    ),
    "log_probs": Objective(
        "labels",
        "-picked.mean()",
        "-picked.sum()",
        "len(labels)",
        lambda outputs, batch: _even(_cross_entropy(outputs, batch[1])),
        "picked = outputs.log_softmax(-1).gather(-1, labels.unsqueeze(-1))",
    ),
    "smoothed": Objective(
        "labels",
        "F.cross_entropy(outputs, labels, label_smoothing=0.1)",
        'F.cross_entropy(outputs, labels, label_smoothing=0.1, reduction="sum")',
        "len(labels)",
        lambda outputs, batch: _even(_cross_entropy(outputs, batch[1], label_smoothing=0.1)),
    ),
    "class_weights": Objective(
        "labels",
        "F.cross_entropy(outputs, labels, weight=class_weights)",
        'F.cross_entropy(outputs, labels, weight=class_weights, reduction="sum")',
        "class_weights[labels].sum()",
        _class_weighted,
    ),
    "chunked": Objective(
        "labels",
        "total / len(labels)",
        "total",
        "len(labels)",
        lambda outputs, batch: _even(_cross_entropy(outputs, batch[1])),
        """
chunks = zip(outputs.chunk(2), labels.chunk(2))
total = sum(F.cross_entropy(part, answers, reduction="sum") for part, answers in chunks)
""",
    ),
    "focal": Objective(
        "labels",
        "focal.mean()",
        "focal.sum()",
        "len(labels)",
        _focal,
        """
entropy = F.cross_entropy(outputs, labels, reduction="none")
focal = (1 - torch.exp(-entropy)) ** 2 * entropy
""",
    ),
    "squared_error": Objective(
        "values",
        "F.mse_loss(outputs, labels)",
        'F.mse_loss(outputs, labels, reduction="sum")',
        "labels.numel()",
        lambda outputs, batch: _even((outputs - batch[1].to(outputs)) ** 2),
    ),
    "binary": Objective(
        "bits",
        "F.binary_cross_entropy_with_logits(outputs, labels)",
        'F.binary_cross_entropy_with_logits(outputs, labels, reduction="sum")',
        "labels.numel()",
        lambda outputs, batch: _even(
            F.binary_cross_entropy_with_logits(outputs, batch[1].to(outputs), reduction="none")
        ),
    ),
    "divergence": Objective(
        "teacher",
        'F.kl_div(outputs.log_softmax(-1), labels, reduction="batchmean")',
        'F.kl_div(outputs.log_softmax(-1), labels, reduction="sum")',
        "len(labels)",
        _divergence,
    ),
    "policy": Objective(
        "actions",
        "-(log_prob * batch[2]).mean()",
        "-(log_prob * batch[2]).sum()",
        "len(labels)",
        _policy,
        "log_prob = torch.distributions.Categorical(logits=outputs).log_prob(labels)",
    ),
    "preference": Objective(
        "pairs",
        "losses.mean()",
        "losses.sum()",
        "len(labels)",
        _preference,
        """
log_probs = outputs.log_softmax(-1)
chosen, rejected = (log_probs.gather(-1, each.unsqueeze(-1)) for each in batch[1:])
losses = -F.logsigmoid(0.5 * (chosen - rejected))
""",
    ),
    "contrastive": Objective(
        "views",
        "F.cross_entropy(similarity, labels)",
        'F.cross_entropy(similarity, labels, reduction="sum")',
        "len(labels)",
        _contrastive,
        """
first, other = F.normalize(outputs, dim=-1).unbind(1)
similarity = first @ other.T / 0.2
""",
    ),
    "ctc": Objective(
        "speech",
        "F.ctc_loss(log_probs, labels, frames, letters)",
        '(F.ctc_loss(log_probs, labels, frames, letters, reduction="none") / letters).sum()',
        "len(labels)",
        _ctc,
        _CTC_SETUP,
    ),
    "ctc_letters": Objective(
        "speech",
        'F.ctc_loss(log_probs, labels, frames, letters, reduction="sum") / letters.sum()',
        'F.ctc_loss(log_probs, labels, frames, letters, reduction="sum")',
        "batch[2].sum()",
        _ctc_of_letters,
        _CTC_SETUP,
    ),
}

# Further terms of the loss: the mean and its sum over one micro-batch.
AUXILIARIES = {
    "z_loss": ("0.1 * {z}.mean()", "0.1 * {z}.sum()"),
    "second_head": (
        "0.3 * F.cross_entropy({second}, {labels})",
        '0.3 * F.cross_entropy({second}, {labels}, reduction="sum")',
    ),
    "adversary": (
        "0.1 * F.binary_cross_entropy_with_logits(critic(outputs), torch.ones(len(outputs), 1))",
        "0.1 * F.binary_cross_entropy_with_logits("
        'critic(outputs), torch.ones(len(outputs), 1), reduction="sum")',
    ),
}
PENALTY = "0.01 * sum(p.square().sum() for p in model.parameters())"


def auxiliary_elements(name: str, outputs: Tensor, second: Tensor | None, batch: Batch) -> Elements:
    """The elements of a second term that has as many as the first."""
    if name == "z_loss":
        valid = batch[1] != IGNORED
        return _even(0.1 * outputs[valid].logsumexp(-1).square())
    if name == "adversary":
        assert second is not None  # what the critic says of the outputs
        return _even(0.1 * F.softplus(-second))
    assert second is not None
    return _even(0.3 * _cross_entropy(second, batch[1]))
