"""The weights that the elements of each objective really got, from the applied gradient alone.

The gradient that an optimizer applied is a linear combination of the gradients of the elements. Its
coefficients are their weights, found by least squares, whatever the script divided by. For masses
``m_j`` (1, or a class weight) and weights ``w_j``:

    B = sum of w_j                                      balance; 1 for a mean over the window
    d = 1/2 * sum of |w_j / B - m_j / sum of m|         misallocation

If no combination gives the gradient, it holds something foreign to the window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from oracle.observing import Columns, Observed
from oracle.program import Program

FOREIGN = (
    2e-3  # relative residual above which a gradient is no combination of its window's elements
)
WORST_CONDITION = 1e4  # above, rounding of single-precision gradients shows in the weights
FOREIGN_IN_HALF = 3e-2  # the same where the forward pass ran in bfloat16


@dataclass(frozen=True)
class Account:
    """One objective in one optimizer step, over all ranks."""

    tokens: float  # the sum of the masses
    balance: float
    misallocation: float
    error: float = 0.0  # of the balance, relative: three times what the residual makes likely


@dataclass(frozen=True)
class TrueStep:
    """One optimizer step. ``accounts`` is empty if the gradient holds something foreign."""

    micro_batches: int
    rows: int  # over all ranks
    residual: float
    accounts: dict[str, Account]


@dataclass(frozen=True)
class Truth:
    """A whole program."""

    windows: int  # that are not skipped
    steps: int
    synchronisations: int  # sums of all gradients over ranks, in the whole program
    replicas_equal: bool  # all ranks applied the same gradient in all steps
    true_steps: list[TrueStep]


def truth_of(program: Program, ranks: list[Observed]) -> Truth:
    """From what each rank observed."""
    first, in_half = ranks[0], program.in_half
    with_data = ranks[:: program.replica_ranks]  # one rank of each replica
    steps = [_true_step(with_data, index, in_half) for index in range(len(first.applied))]
    equal = all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-7)
        for rank in ranks[1:]
        for a, b in zip(first.applied, rank.applied, strict=True)
    )
    windows = len(first.micro_batches)
    return Truth(windows, first.steps, first.synchronisations, equal, steps)


def _true_step(ranks: list[Observed], index: int, in_half: bool) -> TrueStep:
    columns = {
        name: _joined([rank.columns[index][name] for rank in ranks])
        for name in ranks[0].columns[index]
    }
    applied = ranks[0].applied[index]
    if in_half or sum(len(each.masses) for each in columns.values()) > len(applied) // 2:
        columns = {name: _by_micro_batch(each) for name, each in columns.items()}
    columns = {name: _without_empty(each) for name, each in columns.items()}
    if not all(each.isfinite().all() for each in (applied, *_gradients(columns))):
        # weights that a mistake let diverge
        return TrueStep(ranks[0].micro_batches[index], _rows(ranks, index), math.inf, {})
    matrix, weights, condition = _solved(columns, applied)
    if condition > WORST_CONDITION:
        columns = {name: _by_micro_batch(each) for name, each in columns.items()}
        matrix, weights, _ = _solved(columns, applied)
    rest = float((matrix @ weights - applied).norm())
    residual = rest / float(applied.norm().clamp(min=1e-30))
    noise = 3 * rest / math.sqrt(len(applied))  # in the direction of one gradient
    foreign = residual > (FOREIGN_IN_HALF if in_half else FOREIGN) or not applied.any()
    accounts = {}
    for name, each in columns.items():
        own, weights = weights[: len(each.masses)], weights[len(each.masses) :]
        part = float((own @ each.gradients).norm()) or math.inf
        accounts[name] = _account(own, each.masses, noise / part)
    return TrueStep(
        ranks[0].micro_batches[index],
        _rows(ranks, index),
        residual,
        {} if foreign else accounts,
    )


def _gradients(columns: dict[str, Columns]) -> list[Tensor]:
    return [each.gradients for each in columns.values()]


def _rows(ranks: list[Observed], index: int) -> int:
    return sum(rank.rows[index] for rank in ranks)


def _solved(columns: dict[str, Columns], applied: Tensor) -> tuple[Tensor, Tensor, float]:
    """The matrix of all gradients, their weights, and the matrix's condition."""
    matrix = torch.cat(_gradients(columns)).T
    solved = torch.linalg.lstsq(matrix, applied.unsqueeze(1), driver="gelsd")
    largest, least = float(solved.singular_values.max()), float(solved.singular_values.min())
    return matrix, solved.solution.flatten(), largest / max(least, 1e-300)


def _account(weights: Tensor, masses: Tensor, error: float) -> Account:
    balance, tokens = float(weights.sum()), float(masses.sum())
    shares = weights / balance if balance else weights
    misallocation = float((shares - masses / tokens).abs().sum() / 2)
    return Account(tokens, balance, misallocation, error)


def _joined(columns: list[Columns]) -> Columns:
    """The elements of all ranks; micro-batches of different ranks stay apart."""
    offsets = range(0, 1000 * len(columns), 1000)
    return Columns(
        torch.cat([each.gradients for each in columns]),
        torch.cat([each.masses for each in columns]),
        torch.cat([each.micro_batches + n for each, n in zip(columns, offsets, strict=True)]),
    )


def _by_micro_batch(columns: Columns) -> Columns:
    """One column for each micro-batch: the mean of its elements by mass."""
    indices = columns.micro_batches.unique()
    chosen = [columns.micro_batches == index for index in indices]
    masses = torch.stack([columns.masses[each].sum() for each in chosen])
    weighted = columns.gradients * columns.masses.unsqueeze(1)
    gradients = torch.stack([weighted[each].sum(0) for each in chosen])
    return Columns(gradients / masses.clamp(min=1e-30).unsqueeze(1), masses, indices)


def _without_empty(columns: Columns) -> Columns:
    """Leave out elements whose loss has no gradient: any weight would do."""
    chosen = columns.gradients.norm(dim=1) > 0
    return Columns(columns.gradients[chosen], columns.masses[chosen], columns.micro_batches[chosen])
