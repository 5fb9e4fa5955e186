"""Draws the settings of a run: task, optimizer, rate, schedule, precision, batch, clipping, noise.

A number gives the same setting on every machine. The rates are such as people choose: each
optimizer's usual range on a task this size, not the edge of stability.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal

Task = Literal["regression", "heavy tails", "classifier", "text", "recurrent", "autoencoder"]
Precision = Literal["fp32", "bf16", "fp16"]
Schedule = Literal["constant", "warm-up, cosine", "one cycle", "halving", "linear"]

TASKS: tuple[Task, ...] = (
    "regression",
    "heavy tails",
    "classifier",
    "text",
    "recurrent",
    "autoencoder",
)
SCHEDULES: tuple[Schedule, ...] = ("constant", "warm-up, cosine", "one cycle", "halving", "linear")
RATES = {"SGD": (0.005, 0.05), "AdamW": (3e-4, 5e-3), "Adam": (3e-4, 5e-3), "RMSprop": (1e-4, 1e-3)}


@dataclass(frozen=True)
class Setting:
    """One run."""

    seed: int
    task: Task
    optimizer: str
    rate: float
    momentum: float
    schedule: Schedule
    precision: Precision
    micro_batches: int
    rows: int
    clip: float | None
    noise: float
    rows_in_all: int | None  # None: never the same batch twice; else epochs over so many rows
    steps: int


def draw(seed: int, steps: int = 2000) -> Setting:
    """The setting of a number."""
    pick = random.Random(seed)
    optimizer = pick.choice(sorted(RATES))
    low, high = RATES[optimizer]
    return Setting(
        seed,
        pick.choice(TASKS),
        optimizer,
        math.exp(pick.uniform(math.log(low), math.log(high))),
        pick.choice((0.0, 0.9)),
        pick.choice(SCHEDULES),
        pick.choices(("fp32", "bf16", "fp16"), (2, 1, 1))[0],
        pick.choice((1, 1, 2, 4)),
        pick.choice((2, 8, 32)),
        pick.choice((None, None, 1.0, 5.0)),
        pick.choice((0.0, 0.1, 0.5)),
        pick.choice((None, 2048, 8192)),
        steps,
    )
