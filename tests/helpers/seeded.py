"""Runs that show all that the pages can show: two ranks, a loss scaler, clipping, evaluations."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping

from gradledger.records import (
    EndRecord,
    EvalRecord,
    Event,
    MicroBatch,
    Record,
    Scaler,
    StepRecord,
)
from helpers.batches import batch, term
from helpers.service import Service

STEPS = 60
MICRO_BATCHES = 4
SKIPPED = (5, 6, 30, 31, 32, 33, 34, 35)
SETTING = {"lr": 3e-4, "planned_steps": 400, "tags": ["sft", "nightly"]}
PLACE = {"host": "node-17", "torch": "2.13.0", "command": "torchrun finetune.py"}


def seed(service: Service) -> None:
    """Send them: ``wrong`` of two ranks, ``right``, ``half`` with a loss scale."""
    now = time.time()
    for rank in (0, 1):
        records = [_step(n, now, ranks=2, rank=rank) for n in range(1, STEPS + 1)]
        fields = {"world_size": 2, "rank": rank, "optimizers": ["AdamW"], "started": now - STEPS}
        _send(service, "wrong", [*records, *_evaluations(now)], fields)
    right = [_step(n, now, fair=True) for n in range(1, STEPS + 1)]
    _send(service, "right", [*right, *_evaluations(now)], {"optimizers": ["AdamW"]})
    half = [_step(n, now, fair=True, scaled=True) for n in range(1, STEPS + 1)]
    _send(service, "half", [*half, EndRecord(now, [STEPS])], {"optimizers": ["SGD"]})


def _send(
    service: Service, run: str, records: Iterable[Record], fields: Mapping[str, object]
) -> None:
    fields = {"name": run, "project": "seeded", "config": SETTING, "environment": PLACE, **fields}
    answer = service.post(batch(run, records, **fields))
    assert answer.status_code == 200, answer.text


def _evaluations(now: float) -> list[EvalRecord]:
    steps = range(10, STEPS + 1, 10)
    return [EvalRecord(n, now - STEPS + n, {"eval_loss": 2 + 3 / n}) for n in steps]


def _step(
    number: int,
    now: float,
    *,
    ranks: int = 1,
    rank: int = 0,
    fair: bool = False,
    scaled: bool = False,
) -> StepRecord:
    draw = random.Random(f"{number} {rank}")
    counts = [draw.choice((64, 120, 400, 900)) for _ in range(MICRO_BATCHES)]
    scale = 65_536.0 if scaled else 1.0
    before = math.exp(random.Random(number).gauss(0, 0.4))  # after DDP, equal on all ranks
    record = StepRecord(0, number, now - STEPS + number, lr=3e-4 * min(1, number / 20))
    for place, count in enumerate(counts):
        weight = 1 / sum(counts) if fair else 1 / (MICRO_BATCHES * count)
        loss = (2 + 4 / (1 + number / 20)) * weight * count
        record.micro_batches.append(
            MicroBatch(
                loss=loss * scale,
                scale=scale if scaled else None,
                terms=[term(count, weight * scale)],
                collectives=2 if ranks > 1 else None,
                wrapper="sync" if ranks > 1 else None,
                fresh=place == 0,
            )
        )
    record.events = [Event("clip_norm", MICRO_BATCHES, limit=1.0, norm=before, factor=1.0)]
    if scaled:
        record.events.insert(0, Event("unscale", MICRO_BATCHES))
        record.events += [Event("scaler_step", MICRO_BATCHES), Event("update", MICRO_BATCHES)]
        record.scaler, record.skipped = Scaler(1, scale), number in SKIPPED
    record.norm = min(before, 1.0)
    record.post_factor = min(1.0, 1 / (before + 1e-6)) / scale
    if ranks > 1:
        record.sync, record.wrapper = "averaged", "ddp"
    else:
        record.noise = [before**2 * 2.2, before**2]
    return record


def judged(service: Service, run: str, steps: int = STEPS) -> Callable[[], bool]:
    """Asks whether so many steps of a run are judged."""
    return lambda: bool(service.get(f"/runs/{run}").json()["steps"] == steps)
