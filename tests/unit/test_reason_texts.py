"""The reasons of rules that report nothing: windows that each leave something unmeasured.

After a change of a text: ``pytest unit/test_reason_texts.py --snapshot-update``.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from gradledger.records import Event, Scaler, StepRecord
from gradledger_monitor.model.step_facts import StepFacts
from helpers.facts import facts, judged, record, term

PARTS = [term(20, 0.02, head=1), term(30, 0.01, head=1)]


def uneven(**run: Any) -> StepFacts:
    """Tokens weigh differently, and together twice what they should."""
    return facts(record([term(10, 0.05), term(30, 0.05)]), **run)


def parallel(**more: Any) -> StepRecord:
    """A rank under DDP."""
    step_record = record([term(10, 0.1)], wrapper="ddp", sync="averaged", **more)
    step_record.micro_batches[0].wrapper, step_record.micro_batches[0].collectives = "sync", 1
    return step_record


def scaled(**more: Any) -> StepRecord:
    """A window under a GradScaler."""
    step_record = record([term(10, 102.4)], scaler=Scaler(1, 1024.0), **more)
    step_record.micro_batches[0].scale = 1024.0
    return step_record


def unlike(**changes: Any) -> StepRecord:
    """A window whose first micro-batch differs in something."""
    step_record = record([term(10, 0.05), term(10, 0.05)])
    for name, value in changes.items():
        setattr(step_record.micro_batches[0], name, value)
    return step_record


USUAL = facts(record([term(10, 0.1)]))
WINDOWS = {
    "one window that is off": facts(record([term(10, 0.07)])),
    "a weight for each sequence is declared": uneven(contract="sequence"),
    "a weight for each sample is declared": uneven(contract="sample"),
    "weights differ inside a micro-batch": facts(
        record([term(10, 0.1, weight_min=0.1, weight_max=0.3)])
    ),
    "losses that pull both ways": facts(record([term(10, 0.1), term(10, -0.1)])),
    "no token got any weight": facts(record([term(5, 0.0)])),
    "parts or tasks": facts(record([PARTS])),
    "parts or tasks, of which one is a mean": facts(
        record([[term(20, 0.05, head=1), term(30, 0.01, head=1)]])
    ),
    "parts or tasks, where twice the mean is declared": facts(
        record([[term(20, 0.1, head=1), term(30, 0.01, head=1)]]), declared_scale=2.0
    ),
    "no loss term": facts(record([[]])),
    "no backward": facts(record([], norm=None, post_factor=None)),
    "no learning rate": facts(record([term(10, 0.1)], lr=None)),
    "nothing after backward": facts(record([term(10, 0.1)], norm=None, post_factor=None)),
    "an infinite norm": facts(record([term(10, 0.1)], norm=float("inf"))),
    "a skipped step": facts(scaled(skipped=True)),
    "a scaler without a norm and a sample": facts(scaled(norm=None, post_factor=None)),
    "the clip was not seen": facts(
        record([term(10, 0.1)], missing={"clip_norm": "the observer failed: no norm"})
    ),
    "one clip": facts(
        record([term(10, 0.1)], events=[Event("clip_norm", 1, norm=2.0, limit=1.0, own=True)])
    ),
    "a shuffled epoch without fingerprints": facts(record([term(10, 0.1)], sampler="random")),
    "a shuffled epoch without a backward": facts(
        record([], sampler="random", norm=None, post_factor=None)
    ),
    "gradients before the window": facts(unlike(fresh=None)),
    "no gradients at all": facts(record([term(10, 0.1)], empty=True, norm=None, post_factor=None)),
    "the same gradients again": facts(record([], repeat=True)),
    "a rank did not arrive": facts(parallel(), parallel(), world_size=3),
    "ranks without fingerprints": facts(parallel(), parallel()),
    "ranks without a wrapper": facts(*[record([term(10, 0.1)])] * 2),
}


def silences(step: StepFacts) -> set[tuple[str, str]]:
    """Rules that report nothing, with the reason."""
    coverage = judged([step]).coverage
    return {(why, rule) for rule, why in coverage.items() if why not in ("ok", "finding")}


def listed(reasons: set[tuple[str, str]]) -> dict[str, list[str]]:
    """Rules by reason."""
    return {
        why: [rule for _, rule in each] for why, each in groupby(sorted(reasons), itemgetter(0))
    }


def test_one_window_that_is_right_leaves_this_open(snapshot: SnapshotAssertion) -> None:
    assert listed(silences(USUAL)) == snapshot


@pytest.mark.parametrize("name", WINDOWS)
def test_the_reasons_of_rules_in_a_window(name: str, snapshot: SnapshotAssertion) -> None:
    assert listed(silences(WINDOWS[name]) - silences(USUAL)) == snapshot
