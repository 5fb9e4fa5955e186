"""Trainings that are resumed in part: what the finding states, and when there is none."""

from __future__ import annotations

from gradledger.records import LeftOpen, Resumed, StepRecord
from gradledger_monitor.model.findings import Finding
from helpers.facts import facts, judged, record, term


def finding(resumed: Resumed, scheduled: tuple[int | None, ...]) -> Finding | None:
    """The finding on steps with the positions of the schedule; the first has what was loaded."""
    sent = [
        record([term(8, 1 / 8)], number, scheduled=position, lr=0.01 if number == 1 else 0.009)
        for number, position in enumerate(scheduled, 1)
    ]
    sent[0].resumed = resumed
    return of(sent)


def of(sent: list[StepRecord]) -> Finding | None:
    """The finding of the rule."""
    result = judged([facts(each) for each in sent])
    return next((f for f in result.findings if f.rule == "schedule.resumed_in_part"), None)


def optimizer(steps: int | None = 60, schedule: int | None = None) -> Resumed:
    """The state of the optimizer was loaded."""
    return Resumed(loaded=True, steps=steps, lr=0.005, under_schedule=True, schedule=schedule)


def test_a_schedule_without_the_averages_of_its_optimizer_is_a_warning() -> None:
    found = finding(Resumed(schedule=60, empty=1000.0), (60, 61, 62))
    assert found is not None
    assert (found.severity, found.first_step, found.steps) == ("warning", 1, 1)
    assert "The state of the LR schedule was loaded at its step 60" in found.summary
    assert found.evidence == {"schedule_steps": 60, "horizon": 1000}


def test_short_averages_are_information() -> None:
    found = finding(Resumed(schedule=60, empty=10.0), (60,))
    assert found is not None and found.severity == "info"


def test_an_optimizer_without_averages_or_a_schedule_at_its_start_is_silent() -> None:
    assert finding(Resumed(schedule=60), (60, 61)) is None
    assert finding(Resumed(schedule=1, empty=1000.0), (1, 2)) is None


def test_a_schedule_that_begins_anew_is_information() -> None:
    found = finding(optimizer(), (None, 1, 2))
    assert found is not None
    assert (found.severity, found.first_step, found.steps) == ("info", 2, 1)
    assert found.evidence == {"steps_before": 60, "lr_before": 0.005, "lr": 0.01}


def test_an_optimizer_that_counts_no_steps_shows_by_its_rate_that_it_had_a_schedule() -> None:
    uncounted = Resumed(loaded=True, lr=0.005, under_schedule=True, moved=True)
    found = finding(uncounted, (None, 1, 2))
    assert found is not None
    assert (found.severity, found.first_step, found.steps) == ("info", 2, 1)
    assert "was loaded, which had stepped under an LR schedule." in found.summary
    assert found.evidence["steps_before"] is None
    assert finding(uncounted, (None, 61, 62)) is None


def test_a_schedule_that_goes_on_is_silent() -> None:
    assert finding(optimizer(), (None, 61, 62)) is None
    assert finding(optimizer(schedule=60), (60, 61)) is None


def test_a_state_without_a_schedule_or_a_count_is_silent() -> None:
    assert finding(Resumed(loaded=True, steps=60, lr=0.01), (None, 1)) is None
    assert finding(optimizer(steps=None), (None, 1)) is None


def test_the_end_shows_that_the_plan_counts_the_steps_before_the_resume() -> None:
    last = StepRecord(0, 3, 2_000.0, skipped=True)
    last.left_open = LeftOpen(planned=62, scheduled=2, trained=2, resumed=60)
    sent = [record([term(8, 1 / 8)], number) for number in (1, 2)]
    found = of([*sent, last])
    assert found is not None and found.severity == "warning"
    assert found.evidence == {"steps_before": 60, "schedule_steps": 2, "planned_steps": 62}
    result = judged([facts(each) for each in [*sent, last]])
    assert [f.rule for f in result.findings] == ["schedule.resumed_in_part"]
