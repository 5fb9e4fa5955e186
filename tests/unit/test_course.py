"""The run as a whole: which losses stay, and which an evaluation is compared with."""

from __future__ import annotations

from gradledger_monitor.model.run_history import BEFORE_EVALUATION, LATE_STEPS, RunHistory
from gradledger_monitor.rules.definition import Parameter

FORGOTTEN = LATE_STEPS  # the last step that may be forgotten after three times as many


def course(*evaluated: int) -> RunHistory:
    """A long run with evaluations after these steps."""
    made = RunHistory(evaluations={"loss": dict.fromkeys(evaluated, 1.0)})
    for step in range(1, 3 * LATE_STEPS + 1):
        made.add(step, float(step))
    return made


def test_of_a_long_run_the_last_losses_stay() -> None:
    assert list(course().losses) == list(range(FORGOTTEN + 1, 3 * LATE_STEPS + 1))


def test_losses_just_before_an_evaluation_stay_as_long_as_the_run() -> None:
    kept = course(100, 105, 500).losses
    early = [step for step in kept if step <= FORGOTTEN]
    assert early == [*range(91, 106), *range(491, 501)]
    assert all(kept[step] == step for step in early)


def test_an_evaluation_sees_the_losses_up_to_its_own_step() -> None:
    order = [1, 2, 3, *range(20, 40)]
    before = RunHistory().steps_before
    assert before(30, order) == list(range(21, 31))
    assert before(20, order) == [1, 2, 3, 20]
    assert len(before(39, order)) == BEFORE_EVALUATION


def test_an_evaluation_that_came_before_its_losses_waits_for_them() -> None:
    before = RunHistory().steps_before
    assert before(5, []) == ()
    assert before(40, list(range(1, 31))) == ()
    assert before(39, list(range(1, 31))) == list(range(21, 31))


def test_a_threshold_knows_its_default_and_what_it_means() -> None:
    class Holder:
        limit = Parameter(5, "steps in a row")

    assert Holder().limit == 5
    assert vars(Holder)["limit"].meaning == "steps in a row"
    assert vars(Holder)["limit"].default == 5
