"""What the museum's scripts share: tiny models, seeded data, and a process group.

The loops are not here: they are the exhibits.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

torch.set_num_threads(1)

VOCABULARY = 24
IGNORED = -100

Batch = tuple[Tensor, Tensor]

# Rows of each micro-batch: token counts differ inside a window and from window to window.
RAGGED: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((5, 3), (2, 2), (11, 9), (4, 2)),
    ((2, 2), (12, 7), (3, 2), (9, 5)),
    ((6, 2), (10, 8), (5, 4), (2, 2)),
)
EVEN: tuple[tuple[tuple[int, ...], ...], ...] = (((6, 6), (6, 6), (6, 6), (6, 6)),)


class TinyLM(nn.Module):
    """Predicts the next token from the present one and the one before it."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.mix = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, VOCABULARY)

    def features(self, ids: Tensor) -> Tensor:
        """Hidden states [rows, length, width]."""
        x = self.embed(ids)
        before = F.pad(x, (0, 0, 1, 0))[:, :-1]
        hidden: Tensor = torch.tanh(self.mix(torch.cat([x, before], -1)))
        return hidden

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [rows, length, vocabulary]."""
        logits: Tensor = self.head(self.features(ids))
        return logits


class TiedLM(nn.Module):
    """Predicts the next token from the present one, in two stages; the embedding is the head."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def begin(self, ids: Tensor) -> Tensor:
        """Hidden states [rows, length, width]."""
        hidden: Tensor = torch.tanh(self.first(self.embed(ids)))
        return hidden

    def end(self, hidden: Tensor) -> Tensor:
        """Logits [rows, length, vocabulary]."""
        return F.linear(torch.tanh(self.second(hidden)), self.embed.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """Both stages."""
        return self.end(self.begin(ids))


def staged_lm(stages: int, width: int = 16) -> nn.Sequential:
    """Predicts the next token from the present one, in parts that follow each other."""
    parts: list[nn.Module] = []
    for number in range(stages):
        first = [nn.Embedding(VOCABULARY, width)] if number == 0 else []
        last = [nn.Linear(width, VOCABULARY)] if number == stages - 1 else []
        parts.append(nn.Sequential(*first, nn.Linear(width, width), nn.Tanh(), *last))
    return nn.Sequential(*parts)


def normed_lm() -> nn.Sequential:
    """Predicts the next token from the present one, in layers with names for a parallel plan."""
    layers = {
        "embed": nn.Embedding(VOCABULARY, 16),
        "norm": nn.LayerNorm(16),
        "first": nn.Linear(16, 32),
        "tanh": nn.Tanh(),
        "second": nn.Linear(32, 16),
        "head": nn.Linear(16, VOCABULARY),
    }
    return nn.Sequential(OrderedDict(layers))


def sentences(lengths: Sequence[int], generator: torch.Generator) -> Batch:
    """One sentence per length, padded: ids, and labels with ``IGNORED`` where there is nothing.

    Short and long sentences follow different rules, so that weights matter to the direction.
    """
    longest = max(lengths)
    ids = torch.zeros(len(lengths), longest, dtype=torch.long)
    labels = torch.full((len(lengths), longest), IGNORED)
    for row, length in enumerate(lengths):
        stride = 5 if length < 6 else 11
        start = int(torch.randint(VOCABULARY, (1,), generator=generator))
        text = (start + stride * torch.arange(length + 1)) % VOCABULARY
        noise = torch.rand(length + 1, generator=generator) < 0.15
        text[noise] = torch.randint(VOCABULARY, (int(noise.sum()),), generator=generator)
        ids[row, :length], labels[row, :length] = text[:-1], text[1:]
    return ids, labels


def text(
    count: int, seed: int = 0, lengths: Sequence[Sequence[Sequence[int]]] = RAGGED
) -> list[list[Batch]]:
    """``count`` windows of micro-batches of sentences."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [lengths[(index + seed) % len(lengths)] for index in range(count)]
    return [[sentences(rows, generator) for rows in window] for window in shapes]


LONGEST = max(max(rows) for window in RAGGED for rows in window)


def whole_batch(window: list[Batch]) -> Batch:
    """All micro-batches of a window as one batch, for a schedule that splits it again."""
    parts: list[list[Tensor]] = [[], []]
    for ids, labels in window:
        missing = (0, LONGEST - ids.shape[1])
        parts[0].append(F.pad(ids, missing))
        parts[1].append(F.pad(labels, missing, value=IGNORED))
    return torch.cat(parts[0]), torch.cat(parts[1])


def token_loss(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Cross entropy over the labels that count."""
    return F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction=reduction
    )


class FusedLoss(torch.autograd.Function):
    """Cross entropy of logits in one function, as fused kernels compute it: gradient in forward."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, divisor: float | None) -> Tensor:
        """The sum over the labels that count, divided by these or by ``divisor``."""
        counts = labels != IGNORED
        total = int(counts.sum()) if divisor is None else divisor
        logs = logits.log_softmax(-1)
        wanted = F.one_hot(labels.clamp_min(0), logits.shape[-1])
        ctx.save_for_backward((logs.exp() - wanted) * counts[..., None] / total)
        return -(logs * wanted).sum(-1)[counts].sum() / total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        """The saved gradient, scaled."""
        return ctx.saved_tensors[0] * upstream[0], None, None


def fused_loss(logits: Tensor, labels: Tensor, divisor: float | None = None) -> Tensor:
    """``FusedLoss``: a mean, unless there is a divisor."""
    loss: Any = FusedLoss.apply(logits, labels, divisor)  # type: ignore[no-untyped-call]
    return torch.as_tensor(loss)


def valid(labels: Tensor) -> int:
    """Labels that count."""
    return int((labels != IGNORED).sum())


def points(rows: Sequence[int], seed: int = 0, inputs: int = 8, outputs: int = 1) -> list[Batch]:
    """Micro-batches of a regression with these numbers of rows."""
    generator = torch.Generator().manual_seed(seed)
    true = torch.randn(inputs, outputs, generator=torch.Generator().manual_seed(99))
    batches = []
    for count in rows:
        x = torch.randn(count, inputs, generator=generator)
        noise = 0.3 * torch.randn(count, outputs, generator=generator)
        batches.append((x, torch.sin(x @ true) + noise))
    return batches


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with Tanh between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


@contextmanager
def all_ranks() -> Iterator[int]:
    """The gloo process group of this launch, for the length of a block; yields the rank."""
    dist.init_process_group("gloo")
    try:
        yield dist.get_rank()
        dist.barrier()
    finally:
        time.sleep(0.3)  # gloo's thread drops its last work, and needs the GIL for that
        dist.destroy_process_group()


two_ranks = all_ranks  # for a launch of two


def summed(value: float) -> float:
    """The sum over all ranks."""
    total = torch.tensor(float(value))
    dist.all_reduce(total)
    return float(total)


class _Gathered(torch.autograd.Function):
    """The parts of a group's ranks along one dimension; gradients are summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Any, dimension: int) -> Tensor:
        ctx.group, ctx.dimension = group, dimension
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, part.contiguous(), group)
        return torch.cat(parts, dimension)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        whole = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(whole, group=ctx.group)
        parts = whole.chunk(dist.get_world_size(ctx.group), ctx.dimension)
        return parts[dist.get_rank(ctx.group)], None, None


def gathered(part: Tensor, group: Any = None, dimension: int = 1) -> Tensor:
    """The parts of a group's ranks along one dimension."""
    whole: Tensor = _Gathered.apply(part, group, dimension)  # type: ignore[no-untyped-call]
    return whole


class _OwnSum(torch.autograd.Function):
    """The sum over a group's ranks, of which each keeps its part; gradients are gathered."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, group: Any) -> Tensor:
        ctx.group = group
        total = whole.clone()
        dist.all_reduce(total, group=group)
        return total.chunk(dist.get_world_size(group))[dist.get_rank(group)]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        parts = [torch.empty_like(gradients[0]) for _ in range(dist.get_world_size(ctx.group))]
        dist.all_gather(parts, gradients[0].contiguous(), ctx.group)
        return torch.cat(parts), None


def own_sum(whole: Tensor, group: Any) -> Tensor:
    """The sum over a group's ranks, of which each keeps its part."""
    part: Tensor = _OwnSum.apply(whole, group)  # type: ignore[no-untyped-call]
    return part


class _Added(torch.autograd.Function):
    """The sum over all ranks; each has the gradient of the whole."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class _Entered(torch.autograd.Function):
    """The same tensor on all ranks, each of which has a part of its gradient."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor) -> Tensor:
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


def added(part: Tensor) -> Tensor:
    """The sum over all ranks, that of a layer of which each holds a part."""
    total: Tensor = _Added.apply(part)  # type: ignore[no-untyped-call]
    return total


def entered(whole: Tensor) -> Tensor:
    """What enters a layer of which each rank holds a part."""
    same: Tensor = _Entered.apply(whole)  # type: ignore[no-untyped-call]
    return same


class _Scattered(torch.autograd.Function):
    """Of rows that all ranks have, each keeps its part; gradients are gathered."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return rows.chunk(dist.get_world_size())[dist.get_rank()].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gathered(gradients[0], None, 0)


class _Whole(torch.autograd.Function):
    """The rows of all ranks; each keeps its part of their gradient, which all ranks have."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        return gathered(part, None, 0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].chunk(dist.get_world_size())[dist.get_rank()].contiguous()


class RowsInParts(nn.Module):
    """Predicts the next token. Of two ranks, each norms its own rows, and holds half of a layer."""

    def __init__(self, own: int | None = None) -> None:
        super().__init__()
        width = 16
        self.embed, self.norm = nn.Embedding(VOCABULARY, width), nn.LayerNorm(width)
        self.halves = nn.ModuleDict({name: mlp(width, width, width) for name in "01"})
        self.head = nn.Linear(width, VOCABULARY)
        self.in_parts = own is not None
        if own is not None:
            del self.halves[str(1 - own)]

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [rows, length, vocabulary]."""
        x = self.embed(ids)
        if self.in_parts:
            x = _Scattered.apply(x)  # type: ignore[no-untyped-call]
        inputs = self.norm(x)
        inputs = gathered(inputs, None, 0) if self.in_parts else inputs
        (first, *second) = [half(inputs) for half in self.halves.values()]
        x = x + (own_sum(first, None) if self.in_parts else first + second[0])
        if self.in_parts:
            x = _Whole.apply(x)  # type: ignore[no-untyped-call]
        logits: Tensor = self.head(x)
        return logits


class Experts(nn.Module):
    """Two experts, for odd and for even tokens. Of a group of two ranks, each holds one."""

    def __init__(self, group: Any = None, own: int | None = None, width: int = 16) -> None:
        super().__init__()
        self.group = group
        self.embed = nn.Embedding(VOCABULARY, width)
        self.mix = nn.Linear(width, width)
        every = nn.ModuleDict({name: nn.Linear(width, width) for name in "01"})
        if own is not None:
            del every[str(1 - own)]
        self.experts = every
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [rows, length, vocabulary]; all ranks of a group have batches of one shape."""
        x = torch.tanh(self.mix(self.embed(ids)))
        of = ids % 2
        if self.group is not None:
            x, of = gathered(x, self.group, 0), gathered(of, self.group, 0)
        chosen = [expert(x) * (of == int(n))[..., None] for n, expert in self.experts.items()]
        y = sum(chosen[1:], chosen[0])
        if self.group is not None:
            y = own_sum(y, self.group)
        logits: Tensor = self.head(torch.tanh(y))
        return logits


class Halves(nn.Module):
    """Predicts the next token; the layers in the middle are split by their width in two.

    Of two ranks, each holds its own half; ``enter`` is called on what enters it.
    """

    def __init__(
        self, own: int | None = None, enter: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        width = 16
        self.embed = nn.Embedding(VOCABULARY, width)
        self.halves = nn.ModuleDict({name: mlp(width, width, width) for name in "01"})
        self.head = nn.Linear(width, VOCABULARY)
        self.in_parts, self.enter = own is not None, enter
        if own is not None:
            del self.halves[str(1 - own)]

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [rows, length, vocabulary]."""
        x = self.embed(ids)
        inputs = x if self.enter is None else self.enter(x)
        parts = [half(inputs) for half in self.halves.values()]
        if self.in_parts:
            (own,) = parts
            parts = [added(own)]
        logits: Tensor = self.head(x + sum(parts[1:], parts[0]))
        return logits


class Attention(nn.Module):
    """Predicts the next token. Of several ranks, each holds a part of each sequence."""

    def __init__(self, ranks: int = 1, rank: int = 0, width: int = 16) -> None:
        super().__init__()
        self.ranks, self.rank = ranks, rank
        self.embed = nn.Embedding(VOCABULARY, width)
        self.project = nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [rows, length of the part, vocabulary]; keys and values are of all parts."""
        queries, keys, values = self.project(self.embed(ids)).chunk(3, -1)
        if self.ranks > 1:
            keys, values = gathered(keys), gathered(values)
        own = self.rank * ids.shape[1] + torch.arange(ids.shape[1])
        mask = own[:, None] >= torch.arange(keys.shape[1])
        logits: Tensor = self.head(F.scaled_dot_product_attention(queries, keys, values, mask))
        return logits


def part_of(batch: Batch, rank: int, ranks: int) -> Batch:
    """A rank's part of each sequence; all parts have one length."""
    ids, labels = batch
    missing = (0, -ids.shape[1] % ranks)
    ids, labels = F.pad(ids, missing), F.pad(labels, missing, value=IGNORED)
    return ids.chunk(ranks, 1)[rank], labels.chunk(ranks, 1)[rank]
