"""Draws programs at random: valid ones, and of chosen dimensions only what is asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace

from oracle.combinations import violations
from oracle.program import DIMENSIONS, Program


def draw(seed: int, only: str = "") -> Iterator[Program]:
    """Programs without end, the same for the same arguments.

    All have the choices of ``only``, such as ``layout:ddp,loop:tail/modulo``. Raises ValueError if
    one does not exist, or if no program has them all.
    """
    chance, fixed = random.Random(f"{seed} {only}"), parsed(only)
    simplest = {name: next(iter(choices)) for name, choices in DIMENSIONS.items()}
    refused = 0
    while refused < 2000:
        choices = {name: chance.choice(each) for name, each in fixed.items()}
        start = Program(chance.randrange(1 << 31), **{**simplest, **choices})
        program = _varied(start, DIMENSIONS.keys() - fixed.keys(), chance)
        refused += 1
        if not violations(program):
            refused = 0
            yield program
    raise ValueError(f"no program has {only}")


def _varied(program: Program, dimensions: AbstractSet[str], chance: random.Random) -> Program:
    """Draw a choice for each dimension, and make those that fit what was drawn before."""
    drawn = [
        (name, chance.choices([*weights], [*weights.values()])[0])
        for name, weights in DIMENSIONS.items()
        if name in dimensions
    ]
    chance.shuffle(drawn)
    least = violations(program)
    for name, choice in (*drawn, *drawn):  # again, because one choice may need another
        candidate = replace(program, **{name: choice})  # type: ignore[arg-type]
        if (count := violations(candidate)) <= least:
            program, least = candidate, count
    return program


def parsed(only: str) -> dict[str, list[str]]:
    """The choices of each dimension in ``layout:ddp,loop:tail/modulo``. Raises ValueError."""
    pairs = [pair.partition(":") for pair in only.split(",") if pair]
    for name, _, choices in pairs:
        if name not in DIMENSIONS:
            raise ValueError(f"no dimension {name!r}; there are {', '.join(DIMENSIONS)}")
        for choice in choices.split("/"):
            if choice not in DIMENSIONS[name]:
                raise ValueError(f"{name} has no {choice!r}, only {', '.join(DIMENSIONS[name])}")
    return {name: choices.split("/") for name, _, choices in pairs}
