"""The loss of a run in the list."""

from __future__ import annotations

from gradledger_web.runs.columns import loss_course

NONE = [None, None]


def columns(losses: list[float | None]) -> dict[str, list[float | None]]:
    return {"step": [10.0, 20.0], "loss_reported": losses, "loss_token": list(NONE)}


def test_the_loss_is_that_of_the_last_step_not_the_mean_of_the_last_point() -> None:
    course = loss_course(columns([3.0, 2.5]), columns([2.4, 2.3]))
    assert course is not None
    assert course.last == 2.3


def test_without_a_loss_at_the_last_steps_that_of_the_last_point_is_shown() -> None:
    course = loss_course(columns([3.0, 2.5]), columns(list(NONE)))
    assert course is not None
    assert course.last == 2.5


def test_a_run_without_a_loss_has_no_course() -> None:
    assert loss_course(columns(list(NONE)), columns(list(NONE))) is None
