"""Updates that are rounded away, in parameters of half precision or at a tiny learning rate."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gradledger.records import Layers
from gradledger_monitor.model.findings import Finding
from helpers.facts import facts, judged, record, term

RATE = 1e-5


def lost(
    unmoved: Sequence[int],
    rates: Sequence[float] | None = None,
    rounded: int = 100,
    *,
    single: bool = False,
) -> Finding | None:
    """The finding in a run that measures its layers at every step."""
    steps = []
    for number, (count, rate) in enumerate(zip(unmoved, rates or [RATE] * 99, strict=False), 1):
        layers = Layers(
            names=["weight"],
            sizes=[1.0],
            gradient=[1.0],
            parameter=[1.0],
            update=[0.0],
            rounded=rounded,
            unmoved=count,
            single=single,
        )
        steps.append(facts(record([term(8, 1 / 8)], number, layers=layers, lr=rate)))
    return next((f for f in judged(steps).findings if f.rule == "norm.lost_updates"), None)


def test_a_run_in_which_nearly_no_coordinate_changes_is_a_warning() -> None:
    finding = lost([100, 99, 98, 97, 96, 98])
    assert finding is not None and (finding.severity, finding.first_step) == ("warning", 5)
    assert finding.summary == (
        "At all 6 measured steps without a rising learning rate, at least 95% of the sampled "
        "coordinates that have a gradient did not change. At step 6, with learning rates up to "
        "1e-05, these were 98.0% of 100: the update is less than half the distance to the next "
        "number of their precision, and is rounded away."
    )


@pytest.mark.parametrize(
    "unmoved",
    [[100] * 4, [100, 90, *[100] * 20], [50] * 20 + [100] * 20],
    ids=["too few steps", "once more changed", "the model converges"],
)
def test_a_run_whose_parameters_changed_is_not_reported(unmoved: list[int]) -> None:
    assert lost(unmoved) is None


def test_steps_of_a_warm_up_or_with_a_rate_of_0_do_not_count() -> None:
    rising = [RATE * (step + 1) / 10 for step in range(10)]
    assert lost([100] * 10 + [40] * 10, rising + [RATE] * 10) is None
    assert lost([100] * 13, rising + [RATE] * 3) is None
    assert lost([100] * 15, rising + [RATE] * 5) is not None
    assert lost([100] * 8, [0.0] * 8) is None


def test_too_few_coordinates_state_nothing() -> None:
    assert lost([63] * 9, rounded=63) is None
    assert lost([64] * 9, rounded=64) is not None


def test_in_float32_the_learning_rate_is_too_small() -> None:
    finding = lost([52] * 6, [1e-9] * 6, single=True)
    assert finding is not None and finding.first_step == 5
    assert finding.title == "Updates are too small for parameters in float32"
    assert "torch.optim.SGD(" in finding.fix and "autocast" not in finding.fix
    assert "at least 50%" in finding.summary and "these were 52.0% of 100" in finding.summary
    assert lost([49] * 20, [1e-9] * 20, single=True) is None


def test_the_end_of_a_schedule_in_float32_does_not_count() -> None:
    assert lost([100] * 20, [4e-9, *[1e-9] * 19], single=True) is None
    assert lost([100] * 20, [1e-9] * 20, single=True) is not None
