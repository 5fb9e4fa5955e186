"""Trains one run in a setting, right in every step unless a fault is handed in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, pad

from museum.courses.settings import Setting

INPUTS, OUTPUTS, CLASSES, LETTERS = 8, 2, 5, 16
Example = tuple[Tensor, Tensor]
EVALUATED_EVERY = 100


@dataclass
class Course:
    """A run while it trains: what a fault may reach into."""

    setting: Setting
    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0
    fault_rate: float = 1.0
    clip: float | None = None
    evaluations: dict[int, float] = field(default_factory=dict)


Watch = Callable[[float, float], None]
Fault = Callable[[Course, list[Example]], None]  # before each step: may change batches or the run


def healthy(course: Course, window: list[Example]) -> None:
    """No fault."""


def train(setting: Setting, fault: Fault = healthy, watch: Watch | None = None) -> Course:
    """Train to the end. ``watch`` gets the norm of the gradients and the loss of each step."""
    torch.manual_seed(setting.seed)
    model = _model(setting)
    course = Course(setting, model, _optimizer(setting, model), clip=setting.clip)
    schedule = torch.optim.lr_scheduler.LambdaLR(course.optimizer, lambda s: _share(setting, s))
    half = setting.precision == "fp16"
    scaler = torch.amp.GradScaler("cpu", enabled=half, growth_interval=200)
    unseen = _examples(setting, 64, torch.Generator().manual_seed(10_000 + setting.seed))
    windows = _windows(setting)
    for course.step in range(1, setting.steps + 1):
        window = next(windows)
        fault(course, window)
        tokens = sum(_count(y) for _, y in window)
        total = 0.0
        for x, y in window:
            with _precision(setting):
                loss = _loss(setting, model(x), y) * _count(y) / tokens
            total += float(loss.detach())
            scaler.scale(loss).backward()
        if course.clip is not None:
            scaler.unscale_(course.optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), course.clip)
        before = scaler.get_scale()
        if watch is not None:
            norm = nn.utils.get_total_norm(
                [p.grad for p in model.parameters() if p.grad is not None]
            )
            watch(float(norm) / (before if course.clip is None else 1.0), total)
        scaler.step(course.optimizer)
        scaler.update()
        if scaler.get_scale() >= before:  # a skipped step must not advance the schedule
            schedule.step()
        course.optimizer.zero_grad()
        if course.step % EVALUATED_EVERY == 0:
            course.evaluations[course.step] = _evaluate(course, *unseen)
    return course


def _evaluate(course: Course, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float(_loss(course.setting, course.model(x), y))


def _precision(setting: Setting) -> AbstractContextManager[Any]:
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    kind = kinds.get(setting.precision)
    return torch.autocast("cpu", dtype=kind) if kind else nullcontext()


# ---------------------------------------------------------------- what is trained, and how


class _Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(LETTERS, 16), nn.Linear(32, 16)
        self.head = nn.Linear(16, LETTERS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        before = pad(x, (0, 0, 1, 0))[:, :-1]
        logits: Tensor = self.head(torch.tanh(self.mix(torch.cat([x, before], -1))))
        return logits


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(INPUTS, 16), nn.Linear(16, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 16)
        for _ in range(2):
            state = self.cell(x.float(), state)
        out: Tensor = self.head(state)
        return out


def _model(setting: Setting) -> nn.Module:
    if setting.task == "text":
        return _Text()
    if setting.task == "recurrent":
        return _Recurrent()
    out = {"classifier": CLASSES, "autoencoder": INPUTS}.get(setting.task, OUTPUTS)
    width = 4 if setting.task == "autoencoder" else 24
    return nn.Sequential(nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, out))


def _optimizer(setting: Setting, model: nn.Module) -> torch.optim.Optimizer:
    kind: Any = getattr(torch.optim, setting.optimizer)
    more = {"momentum": setting.momentum} if setting.optimizer == "SGD" else {}
    made: torch.optim.Optimizer = kind(model.parameters(), lr=setting.rate, **more)
    return made


def _share(setting: Setting, step: int) -> float:
    """Of the highest rate, at a step."""
    done = step / setting.steps
    if setting.schedule == "warm-up, cosine":
        return min(1.0, (step + 1) / 100) * (0.505 + 0.495 * math.cos(math.pi * done))
    if setting.schedule == "one cycle":
        return 0.04 + 0.96 * (done / 0.3 if done < 0.3 else max(0.0, (1 - done) / 0.7))
    if setting.schedule == "halving":
        return float(0.5 ** int(done * 5))
    return 1.0 - 0.99 * done if setting.schedule == "linear" else 1.0


# ---------------------------------------------------------------- data


def _windows(setting: Setting) -> Iterator[list[Example]]:
    draw = torch.Generator().manual_seed(setting.seed)
    whole = setting.rows_in_all
    kept = _examples(setting, whole, draw) if whole else None
    order: list[int] = []
    while True:
        if kept is None:
            sizes = [setting.rows] * setting.micro_batches
            yield [_examples(setting, rows, draw) for rows in sizes]
            continue
        wanted = setting.rows * setting.micro_batches
        if len(order) < wanted:
            order = torch.randperm(whole or 0, generator=draw).tolist()
        chosen, order = order[:wanted], order[wanted:]
        yield [(kept[0][part], kept[1][part]) for part in torch.tensor(chosen).split(setting.rows)]


def _examples(setting: Setting, rows: int, draw: torch.Generator) -> Example:
    if setting.task == "text":
        return _sentences(setting, rows, draw)
    x = torch.randn(rows, INPUTS, generator=draw)
    true = torch.randn(INPUTS, CLASSES, generator=torch.Generator().manual_seed(7))
    noise = setting.noise * torch.randn(rows, OUTPUTS, generator=draw)
    if setting.task == "heavy tails":  # Student's t with three degrees of freedom
        normal = torch.randn(rows, 3, generator=draw)
        noise = noise / (normal.square().mean(1, keepdim=True).sqrt() + 1e-3)
    if setting.task == "classifier":
        flipped = torch.rand(rows, generator=draw) < setting.noise / 2
        random = torch.randint(CLASSES, (rows,), generator=draw)
        return x, torch.where(flipped, random, (x @ true).argmax(1))
    if setting.task == "autoencoder":
        return x, x
    return x, torch.sin(x @ true[:, :OUTPUTS]) + noise


def _sentences(setting: Setting, rows: int, draw: torch.Generator) -> Example:
    """Lengths 2 to 12, padded; labels of padding are ignored."""
    lengths = torch.randint(2, 13, (rows, 1), generator=draw)
    start = torch.randint(LETTERS, (rows, 1), generator=draw)
    text = (start + 3 * torch.arange(13)) % LETTERS
    odd = torch.rand(rows, 13, generator=draw) < setting.noise / 2
    text = torch.where(odd, torch.randint(LETTERS, (rows, 13), generator=draw), text)
    return text[:, :-1], text[:, 1:].masked_fill(torch.arange(12) >= lengths, -100)


def _loss(setting: Setting, out: Tensor, y: Tensor) -> Tensor:
    if setting.task in ("text", "classifier"):
        return cross_entropy(out.flatten(0, -2).float(), y.flatten(), ignore_index=-100)
    return mse_loss(out.float(), y)


def _count(y: Tensor) -> int:
    """What the mean of a micro-batch divides by."""
    return int((y != -100).sum()) if y.dtype == torch.long else y.numel()
