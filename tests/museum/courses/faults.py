"""Faults for otherwise healthy runs, one for each statistical signature that a loop can show."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from museum.courses.settings import Setting, draw
from museum.courses.training import Course, Example, Fault

ONSET = (300, 1200)  # steps between which a fault begins


@dataclass(frozen=True)
class Illness:
    """A kind of fault: what it should be called, and by when."""

    rule: str
    why: str
    within: int  # steps after the onset in which it must be named
    also: tuple[str, ...]  # names that are as true
    setting: Callable[[int], Setting]
    fault: Callable[[int], Fault]  # for an onset


def onset(seed: int) -> int:
    """The step at which the fault of a run begins."""
    return random.Random(seed + 1).randint(*ONSET)


def _only(**fixed: object) -> Callable[[int], Setting]:
    return lambda seed: dataclasses.replace(draw(seed), **fixed)  # type: ignore[arg-type]


def _corrupted(start: int) -> Fault:
    def fault(course: Course, window: list[Example]) -> None:
        if course.step == start:
            window[:] = [(x, y * 100) for x, y in window]

    return fault


def _rate_times(factor: float) -> Callable[[int], Fault]:
    def made(start: int) -> Fault:
        def fault(course: Course, window: list[Example]) -> None:
            if course.step >= start:
                for group in course.optimizer.param_groups:
                    group["lr"] = course.setting.rate * factor

        return fault

    return made


def _decaying(start: int) -> Fault:
    def fault(course: Course, window: list[Example]) -> None:
        if course.step >= start:
            for parameter in course.model.parameters():
                parameter.data.zero_()
            window[:] = [(x, y - y.mean(0)) for x, y in window]

    return fault


def _infinite(steps: int) -> Callable[[int], Fault]:
    def made(start: int) -> Fault:
        def fault(course: Course, window: list[Example]) -> None:
            if start <= course.step < start + steps:
                x, y = window[0]
                window[0] = (x, y * math.inf)

        return fault

    return made


def _tight(start: int) -> Fault:
    def fault(course: Course, window: list[Example]) -> None:
        if course.step >= start:
            course.clip = 1e-4

    return fault


POINTS = {
    "task": "regression",
    "noise": 0.1,
    "rows": 32,
    "precision": "fp32",
    "clip": None,
    "rows_in_all": None,
}
ILLNESSES = (
    Illness(
        "norm.spike", "one batch has targets a hundred times too large", 10, ("norm.exploding",),
        _only(**POINTS), _corrupted,
    ),
    Illness(
        "norm.nonfinite", "the rate is suddenly far beyond the stable limit: overflow", 20,
        ("loss.nonfinite", "norm.exploding", "norm.spike"),
        _only(**{**POINTS, "optimizer": "SGD", "momentum": 0.9, "clip": None, "rate": 0.05}),
        _rate_times(100.0),
    ),
    Illness(
        "norm.vanishing", "weights are set to zero, and gradients are with them", 400, (),
        _only(**{**POINTS, "noise": 0.5, "task": "autoencoder"}), _decaying,
    ),
    Illness(
        "scaler.collapse", "a hundred losses in a row are infinite: the scale only falls", 40,
        ("scaler.skipped_steps",),
        _only(**{**POINTS, "precision": "fp16"}), _infinite(100),
    ),
    Illness(
        "scaler.skipped_steps", "six steps in a row are skipped", 10, (),
        _only(**{**POINTS, "precision": "fp16"}), _infinite(6),
    ),
    Illness(
        "clip.always_engaged", "the limit is far below every norm", 240, (),
        _only(**{**POINTS, "clip": 100.0}), _tight,
    ),
    Illness(
        "eval.diverging", "32 rows are learnt by heart", 1500, (),
        _only(**{**POINTS, "noise": 0.5, "rows_in_all": 32, "micro_batches": 1}),
        lambda start: lambda course, window: None,
    ),
)  # fmt: skip
