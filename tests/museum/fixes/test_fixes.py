"""A fix that a finding shows makes the gradient exact, and the verdict balanced."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from museum.fixes.proof import EXACT, REAL, fixed, run
from museum.stage import Stage

HERE = Path(__file__).parent
UNEQUAL = "reduction.token_weights_unequal"
RULES = {
    "mean_of_means": UNEQUAL,
    "mean_of_means_divided_again": "reduction.double_division",
    "sum_of_means": "reduction.missing_division",
    "not_divided": "reduction.missing_division",
    "divided_twice": "reduction.double_division",
    "bare_sum": "reduction.unnormalised_sum",
    "all_positions": "reduction.wrong_denominator",
    "short_window": "reduction.partial_window",
    "ranks_mean_of_means": "reduction.token_weights_unequal",
    "ranks_uneven": "ddp.uneven_microbatches",
    "ranks_not_divided": "reduction.missing_division",
    "ranks_divided_twice": "reduction.double_division",
    "ranks_times_world_size": "reduction.world_size",
    "ranks_over_world_size": "reduction.world_size",
    "ranks_by_hand_summed": "reduction.world_size",
    "ranks_by_hand_averaged": "reduction.world_size",
    "ranks_other_divide_factor": "reduction.world_size",
}


@pytest.mark.parametrize("name", RULES)
def test_the_fix_that_is_shown_makes_the_gradient_exact(
    stage: Stage, name: str, tmp_path: Path
) -> None:
    program, ranks = HERE / f"{name}.py", 2 if name.startswith("ranks_") else 1
    wrong = run(stage, program, ranks)
    assert wrong.fault > REAL
    script = tmp_path / program.name
    script.write_text(fixed(program.read_text(), wrong.finding(RULES[name]).fix))
    right = run(stage, script, ranks)
    assert right.fault < EXACT
    assert (right.result.verdict, right.result.findings) == ("balanced", [])


@pytest.mark.parametrize("name", ["not_divided", "divided_twice"])
@pytest.mark.parametrize("loss", ["loss", "objective_of_the_batch"])
def test_the_change_of_the_line_makes_the_gradient_exact(
    stage: Stage, name: str, loss: str, tmp_path: Path
) -> None:
    script = tmp_path / f"{name}.py"
    script.write_text(re.sub(r"\bloss\b", loss, (HERE / f"{name}.py").read_text()))
    wrong = run(stage, script)
    (finding,) = wrong.located
    script.write_text(_applied(finding.fix, script.read_text()))
    right = run(stage, script)
    assert right.fault < EXACT
    assert (right.result.verdict, right.located) == ("balanced", [])


def _applied(diff: str, program: str) -> str:
    """The program with one line changed, as ``patch`` does it."""
    *_, position, removed, added = diff.splitlines()
    number = int(position.split()[2])
    lines = program.splitlines()
    assert removed == f"-{lines[number - 1]}"
    lines[number - 1] = added[1:]
    return "\n".join(lines) + "\n"


def test_a_short_last_batch_that_is_left_out_leaves_exact_gradients(
    stage: Stage, tmp_path: Path
) -> None:
    program = HERE / "short_batch.py"
    wrong = run(stage, program)
    assert wrong.fault > REAL
    assert "DataLoader(..., drop_last=True)" in wrong.finding(UNEQUAL).fix
    script = tmp_path / program.name
    script.write_text(program.read_text().replace("drop_last=False", "drop_last=True"))
    right = run(stage, script)
    assert right.fault < EXACT
    assert (right.result.verdict, right.result.findings) == ("balanced", [])
