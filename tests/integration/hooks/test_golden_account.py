"""Every deterministic field of a run's records, against an account that was drawn up on paper.

The model is y = w * x with w = 1, in float64; a sample's loss is (y - target)^2 / 4, four samples a
window, so its gradient is (y - target) * x / 2. With SGD at rates that are powers of two all
numbers are exact: what is compared is equal, to the bit, and a field too many fails as well.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from helpers.ranks import play
from helpers.training import facts_of, steps_of

from . import golden

MEASURED = ("time", "backward_ms")  # of a clock

Plain = dict[str, Any]


def account(line: bytes) -> Plain:
    """The fields of a line, without those that are read from a clock.

    Layers have a test of their own. Of the located calls, the roles: their lines are those of
    ``golden``.
    """
    fields: Plain = json.loads(line)
    fields.pop("layers", None)
    if "code" in fields:
        fields["code"] = [location["role"] for location in fields["code"]]
    for part in [fields, *fields["micro_batches"]]:
        for name in MEASURED:
            assert part.pop(name, 1.0) > 0
    return fields


def squares(samples: int, weight: float) -> list[Plain]:
    """One loss over ``samples`` samples of weight ``weight`` each; divided by a constant."""
    of_target = {"tokens": samples, "size": samples, "rows": samples, "positions": samples}
    of_loss = {"kind": "MseLossBackward0", "reduction": "sum", "undivided": False, "head": 1}
    return [{**of_loss, **of_target, "weight": weight, "divisors": [4.0]}]


# Targets of both ranks, as in golden.py.
Targets = tuple[float, ...]
FIRST, SECOND, ONES, ZEROS = (0.0, 0.0, 2.0), (1.0,), (1.0, 1.0), (0.0, 0.0)


def micro_batch(number: int, targets: Targets, loss: Any, weight: float, **more: Any) -> Plain:
    """The first of two begins fresh. The fingerprint is 53 bits of Python's hash of the targets."""
    finite = all(map(math.isfinite, targets))
    fingerprint = float(hash(targets) >> 11) if finite else "NaN"
    constant = {"number": number, "fresh": number % 2 == 1, "constant_target": False, "call": 1}
    terms = squares(len(targets), weight)
    return {**constant, "loss": loss, "terms": terms, "fingerprint": fingerprint, **more}


# ---------------------------------------------------------------------- one rank, under a scaler

UNPLANNED = "the LR schedule has no number of steps, or none that can be read"
COEFFICIENT = 0.25 / (4.5 + 1e-6)  # of the third step's clipping

ONE_RANK: list[Plain] = [
    {
        # w = 1. x = 1, 2, 1 to 0, 0, 2: errors 1, 2, -1, squares 6, gradient (1 + 4 - 1) / 2 = 2;
        # x = 2 to 1: error 1, square 1, gradient 1. The scale is 8: losses 12 and 2, weights 8 / 4.
        "type": "step",
        "alone": True,
        "optimizer": 0,
        "step": 1,
        "micro_batches": [
            micro_batch(1, FIRST, 12.0, 2.0, scale=8.0, sample_norm=16.0),
            micro_batch(2, SECOND, 2.0, 2.0, scale=8.0, sample_norm=8.0),
        ],
        "events": [
            {"op": "unscale", "after": 2},
            {"op": "clip_norm", "after": 2, "limit": 100.0, "norm": 3.0, "factor": 1 / 8},
            {"op": "scaler_step", "after": 2},
        ],
        "scaler": {"ordinal": 1, "scale": 8.0, "tracker": 0},
        "norm": 3.0,
        "post_factor": 1 / 8,  # the unscaling; the clipping did not engage
        "lr": 0.5,
        "zero_share": 0.0,
        "parameters": 1.0,
        "update_ratio": 1.5,  # w = 1 - 0.5 * 3
        "code": [
            *("new_schedule", "scaled_backward", "loss", "unscale", "clip_norm", "scaler_step"),
            "step",
        ],
        # scaled gradients 16 and 8, twice which estimate the sum: (32^2 + 16^2) / 2, and 24^2
        "noise": [640.0, 576.0],
    },
    {
        # w = -0.5. Errors -0.5, -1, -2.5, squares 7.5, gradient (-0.5 - 2 - 2.5) / 2 = -2.5; then a
        # target of infinity, so nothing is stepped.
        "type": "step",
        "alone": True,
        "optimizer": 0,
        "step": 2,
        "micro_batches": [
            micro_batch(3, FIRST, 15.0, 2.0, scale=8.0, sample_norm=20.0),
            micro_batch(4, (math.inf,), "Infinity", 2.0, scale=8.0, sample_norm="Infinity"),
        ],
        "events": [
            {"op": "update"},
            {"op": "schedule"},
            {"op": "unscale", "after": 2},
            {"op": "clip_norm", "after": 2, "limit": 100.0, "norm": "Infinity"},
            {"op": "scaler_step", "after": 2},
        ],
        "scaler": {"ordinal": 1, "scale": 8.0, "tracker": 1},
        "code": ["update", "schedule", "zero_grad"],
        "skipped": True,
        "norm": "NaN",  # clipping multiplied infinity by 100 / infinity
        "lr": 0.25,
        "scheduled": 1,
        "zero_share": 0.0,
        "noise": ["Infinity", "Infinity"],
        "missing": {
            "post_factor": "the sampled gradients are not finite",
            "schedule_total": UNPLANNED,
        },
    },
    {
        # w = -0.5 still, the scale has fallen to 4, the rate was scheduled on the skipped step too.
        # Gradients -2.5, and (-1 - 1) * 2 / 2 = -2: the norm is 4.5, and is clipped to 0.25.
        "type": "step",
        "alone": True,
        "optimizer": 0,
        "step": 3,
        "micro_batches": [
            micro_batch(5, FIRST, 7.5, 1.0, scale=4.0, sample_norm=10.0),
            micro_batch(6, SECOND, 4.0, 1.0, scale=4.0, sample_norm=8.0),
        ],
        "events": [
            {"op": "update"},
            {"op": "schedule"},
            {"op": "unscale", "after": 2},
            {"op": "clip_norm", "after": 2, "limit": 0.25, "norm": 4.5, "factor": 1 / 4},
            {"op": "scaler_step", "after": 2},
        ],
        "scaler": {"ordinal": 1, "scale": 4.0, "tracker": 0},
        "norm": pytest.approx(4.5 * COEFFICIENT, rel=1e-12),
        "post_factor": pytest.approx(COEFFICIENT / 4, rel=1e-12),
        "lr": 0.125,
        "scheduled": 2,
        "missing": {"schedule_total": UNPLANNED},  # StepLR has no end
        "zero_share": 0.0,
        "noise": [(20.0**2 + 16.0**2) / 2, 18.0**2],
    },
]


def test_one_rank_under_a_scaler_is_that_on_paper() -> None:
    lines = golden.on_one_rank()
    assert [account(line) for line in lines] == ONE_RANK


def test_the_ledger_of_one_rank_is_that_on_paper() -> None:
    first, skipped, third = facts_of([steps_of(golden.on_one_rank())])
    assert skipped.unmeasured == "the GradScaler skipped this step"
    for step, loss in ((first, 7 / 4), (third, 11.5 / 4)):
        assert step.ledger is not None
        assert [(e.tokens, e.relative) for e in step.ledger.entries] == [(3, 1.0), (1, 1.0)]
        assert (step.ledger.tokens, step.ledger.misallocation) == (4, 0.0)
        assert (step.loss_reported, step.loss_token) == (loss, loss)
    assert first.ledger is not None
    assert [e.weight for e in first.ledger.entries] == [1 / 4, 1 / 4]
    assert first.ledger.balance == 1.0
    assert first.batch_tokens == 4


# ---------------------------------------------------------------------- two ranks, under DDP


def both(number: int, first: tuple[Targets, float], second: tuple[Targets, float]) -> list[Plain]:
    """Targets and loss; the second runs the one all-reduce of the one bucket."""
    (targets, loss), (others, other) = first, second
    alone = {"wrapper": "no_sync", "collectives": 0}
    return [
        micro_batch(number, targets, loss, 1 / 4, **alone),
        micro_batch(number + 1, others, other, 1 / 4, call=2, wrapper="sync", collectives=1),
    ]


STEP: Plain = {
    "type": "step",
    "optimizer": 0,
    "post_factor": 1.0,
    "lr": 0.5,
    "zero_share": 0.0,
    "nonfinite": 0,
    "sync": "averaged",
    "wrapper": "ddp",
    "collectives_after": 0,
    "sync_bytes": 8,  # one float64
    "outside": 0,
}


def replica(w: float) -> Plain:
    """The one parameter before the step."""
    return {"total": 1, "indices": [0], "fingerprints": [w], "shapes": [[1, 1]]}


# w = 1: gradients 2 + 1 on the first rank, and 1 + 1 on the second, are averaged to 2.5.
# w = -0.25: -1.75 - 1.5, and -2.125 - 0.25, to -2.8125.
BEGUN: Plain = {
    **STEP,
    "alone": True,
    "step": 1,
    "norm": 2.5,
    "parameters": 1.0,
    "update_ratio": 1.25,
    "replica": replica(1.0) | {"names": ["weight"]},
    "code": ["backward", "loss", "backward", "loss", "step"],
}
ENDED: Plain = {
    **STEP,
    "alone": True,
    "step": 2,
    "norm": 2.8125,
    "replica": replica(-0.25),
    "code": ["zero_grad"],
}

TWO_RANKS: list[list[Plain]] = [
    [
        {**BEGUN, "micro_batches": both(1, (FIRST, 6 / 4), (SECOND, 1 / 4))},
        {**ENDED, "micro_batches": both(3, (FIRST, 5.375 / 4), (SECOND, 2.25 / 4))},
    ],
    [
        # x = 2, 1 to 1, 1, and x = 1, 1 to 0, 0
        {**BEGUN, "micro_batches": both(1, (ONES, 1 / 4), (ZEROS, 2 / 4))},
        {**ENDED, "micro_batches": both(3, (ONES, 3.8125 / 4), (ZEROS, 0.125 / 4))},
    ],
]

# A micro-batch's own gradient, twice, and what both ranks stepped on: the last one's own is not
# seen, for DDP combines it before backward ends.
NOISE = [
    [[(2 * 2.0) ** 2, 2.5**2], [(2 * 1.75) ** 2, 2.8125**2]],
    [[(2 * 1.0) ** 2, 2.5**2], [(2 * 2.125) ** 2, 2.8125**2]],
]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[list[bytes]]:
    """What each rank would send."""
    return play(Path(golden.__file__), tmp_path_factory.mktemp("ranks"))


def test_two_ranks_under_ddp_are_those_on_paper(two_ranks: list[list[bytes]]) -> None:
    accounts = [[account(line) for line in lines] for lines in two_ranks]
    for step in (step for rank in accounts for step in rank):
        assert len(step.pop("noise")) == 2  # see the next test
        first, last = step["micro_batches"]  # the last one's own is not seen
        assert (2 * first.pop("sample_norm")) ** 2 in {pair[0] for rank in NOISE for pair in rank}
        assert "sample_norm" not in last
    assert accounts == TWO_RANKS


def test_the_noise_of_two_ranks_is_that_on_paper(two_ranks: list[list[bytes]]) -> None:
    accounts = [[account(line)["noise"] for line in lines] for lines in two_ranks]
    assert accounts == NOISE


def test_the_ledger_of_two_ranks_is_that_on_paper(two_ranks: list[list[bytes]]) -> None:
    for step, losses in zip(
        facts_of([steps_of(lines) for lines in two_ranks]), (10 / 8, 11.5625 / 8), strict=True
    ):
        assert step.ledger is not None
        assert [e.tokens for e in step.ledger.entries] == [3, 1, 2, 2]
        assert {e.weight for e in step.ledger.entries} == {1 / 8}
        assert (step.ledger.tokens, step.ledger.balance) == (8, 1.0)
        assert (step.loss_reported, step.loss_token) == (losses, losses)
