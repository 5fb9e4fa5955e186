"""A fix that a finding shows makes the gradient exact, and the verdict balanced."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from museum.fixes.proof import EXACT, REAL, fixed, hunk_of, patched, run
from museum.fixes.table import BESIDE_THE_GRADIENT, CHANGED, PLAIN, VERDICTS, fixes
from museum.stage import Stage

HERE = Path(__file__).parent
UNEQUAL = "reduction.token_weights_unequal"
RANKS = {"ranks": 2, "ranks4": 4}  # of the programs in a folder


@pytest.mark.parametrize("name", PLAIN)
def test_the_fix_that_is_shown_makes_the_gradient_exact(
    stage: Stage, name: str, tmp_path: Path
) -> None:
    program, ranks = HERE / f"{name}.py", RANKS.get(name.partition("/")[0], 1)
    rule, fix = PLAIN[name]
    wrong = run(stage, program, ranks)
    assert wrong.fault > REAL
    assert wrong.finding(rule).fix == fixes()[fix]
    script = tmp_path / program.name
    script.write_text(fixed(program.read_text(), wrong.finding(rule).fix))
    right = run(stage, script, ranks)
    assert right.fault < EXACT
    assert (right.result.verdict, right.result.findings) == (VERDICTS.get(name, "balanced"), [])


@pytest.mark.parametrize("name", BESIDE_THE_GRADIENT)
def test_a_fix_of_what_is_right_beside_the_gradient_leaves_it_exact(
    stage: Stage, name: str, tmp_path: Path
) -> None:
    program = HERE / f"{name}.py"
    rule, fix = BESIDE_THE_GRADIENT[name]
    before = run(stage, program, 2)
    assert before.fault < EXACT
    assert before.finding(rule).fix == fixes()[fix]
    script = tmp_path / program.name
    script.write_text(fixed(program.read_text(), before.finding(rule).fix))
    after = run(stage, script, 2)
    assert after.fault < EXACT
    assert (after.result.verdict, after.result.findings) == ("balanced", [])


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("rename", ["", "_of_it"])
def test_the_change_of_the_line_makes_the_gradient_exact(
    stage: Stage, name: str, rename: str, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    names = r"\b(loss|optimizer|scaler)\b(?!\()"
    script.write_text(re.sub(names, rf"\1{rename}", (HERE / f"{name}.py").read_text()))
    wrong = run(stage, script)
    finding = next(f for f in wrong.located if f.inhibited_by is None)
    changed = [line.replace(rename, "") for line in hunk_of(finding.fix)[1]]
    assert CHANGED[name] in changed
    script.write_text(patched(finding.fix, script.read_text()))
    right = run(stage, script)
    assert right.fault < EXACT
    assert (right.result.verdict, right.located) == ("balanced", [])


def test_a_short_last_batch_that_is_left_out_leaves_exact_gradients(
    stage: Stage, tmp_path: Path
) -> None:
    program = HERE / "reduction" / "short_batch.py"
    wrong = run(stage, program)
    assert wrong.fault > REAL
    assert "DataLoader(..., drop_last=True)" in wrong.finding(UNEQUAL).fix
    script = tmp_path / program.name
    script.write_text(program.read_text().replace("drop_last=False", "drop_last=True"))
    right = run(stage, script)
    assert right.fault < EXACT
    assert (right.result.verdict, right.result.findings) == ("balanced", [])
