"""What changed between two runs, as text."""

from __future__ import annotations

from typing import Any

from gradledger_monitor.model.findings import EvaluationResult, Finding
from gradledger_monitor.store.runs.queries import RunRow
from gradledger_web.progress import LOST_AFTER, SILENT_AFTER, is_lost, progress_of
from gradledger_web.runs import diff as run_diff


def run(**fields: Any) -> RunRow:
    """A run that began at second 0 and was seen last at second 100."""
    values: dict[str, Any] = dict.fromkeys(RunRow.__dataclass_fields__)
    known: dict[str, Any] = {
        "id": "r",
        "name": "a run",
        "verdict": "balanced",
        "optimizers": ["SGD"],
        "config": {},
    }
    known |= {"environment": {}, "steps": 10, "tokens": 0, "world_size": 1, "ended": False}
    return RunRow(**{**values, **known, "started": 0.0, "last_seen": 100.0, **fields})


def medians(**values: float) -> run_diff.ComparedRun:
    """A run with these medians at its end."""
    return run_diff.ComparedRun(run(), EvaluationResult("balanced", [], [], {}), {}, values)


def test_a_smaller_misallocation_is_called_improved() -> None:
    before, after = medians(misallocation=0.101, balance=1.0), medians(misallocation=0.0, balance=1)
    improved = ["Improved: d 10.1% \N{RIGHTWARDS ARROW} 0%."]
    assert run_diff.changes([before, after]) == {"a run (r)": improved}
    assert run_diff.changes([before, before]) == {}
    assert [*run_diff.changes([after, before]).values()] == [
        ["Worse: d 0% \N{RIGHTWARDS ARROW} 10.1%."]
    ]


def test_a_balance_is_compared_with_one() -> None:
    four, half = medians(balance=4.0), medians(balance=0.5)
    assert [*run_diff.changes([four, half]).values()] == [
        ["Improved: B 4 \N{RIGHTWARDS ARROW} 0.5."]
    ]


def test_the_change_of_a_figure_is_a_factor_or_percentage_points() -> None:
    rows = run_diff.result_rows(
        [medians(misallocation=0.2, loss_token=2.0), medians(misallocation=0.0, loss_token=3.0)]
    )
    changes = {row.name: row.change for row in rows}
    assert changes["misallocation d"] == "\N{MINUS SIGN}20 points"
    assert changes["token-weighted loss"] == "1.5\N{MULTIPLICATION SIGN}"
    assert changes["verdict"] == ""


def test_a_small_change_of_a_figure_is_a_percentage() -> None:
    rows = run_diff.result_rows([medians(loss_token=2.663), medians(loss_token=2.672)])
    changes = {row.name: row.change for row in rows}
    assert changes["token-weighted loss"] == "+0.338%"


def test_the_change_column_names_findings_that_are_new_or_gone() -> None:
    finding = Finding("norm.spike", 0, "error", 1, 2, 2, "A spike", "", "", {})
    broken, fixed = medians(), medians()
    broken.evaluation.findings.append(finding)
    assert [row.change for row in run_diff.finding_rows([broken, fixed])] == ["gone"]
    assert [row.change for row in run_diff.finding_rows([fixed, broken])] == ["new"]
    assert [row.change for row in run_diff.finding_rows([broken, broken])] == [""]


def test_more_steps_than_planned_are_not_written_as_a_part_of_them() -> None:
    done = {n: progress_of(run(config={"max_steps": 400}, steps=n), None).done for n in (60, 1000)}
    assert done == {60: "60 of 400", 1000: "1,000 (400 planned)"}


def test_a_run_that_stopped_sending_without_its_end_is_lost_and_has_no_rate() -> None:
    late = 100.0 + LOST_AFTER + 1
    assert is_lost(run(), late) and not is_lost(run(), 101.0)
    assert not is_lost(run(ended=True), late)
    planned = run(config={"max_steps": 100})
    assert progress_of(planned, 2.0, 101.0).eta == 45.0
    assert progress_of(planned, 2.0, 100.0 + SILENT_AFTER + 1).eta is None
    lost = progress_of(planned, 2.0, late)
    assert (lost.rate, lost.eta) == (None, None)


def test_what_differs_in_the_environment_is_named() -> None:
    balanced = EvaluationResult("balanced", [], [], {})
    before, after = (
        run_diff.ComparedRun(
            run(environment={"torch": "2.13.0", "command": text}), balanced, {}, {}
        )
        for text in ("train.py", "train.py --fixed")
    )
    assert [*run_diff.changes([before, after]).values()] == [["Different environment: command."]]
