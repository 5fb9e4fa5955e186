"""The fixes of loops of one rank make the gradient exact on two, under DDP and FSDP2, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from museum.fixes.proof import EXACT, REAL, fixed, run
from museum.fixes.table import OF_ONE_RANK, PLAIN, WRAPPED, fixes
from museum.fixes.wrapped import WRAPPERS, on_two_ranks
from museum.stage import Stage

HERE = Path(__file__).parent
COST = "ddp.missing_no_sync"  # no program is written for a no_sync; the gradient is the same


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", WRAPPED)
def test_the_fix_that_is_shown_makes_the_gradient_exact(
    stage: Stage, name: str, wrapper: str, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(on_two_ranks((HERE / f"{name}.py").read_text(), wrapper))
    rule, fix = PLAIN[name]
    wrong = run(stage, script, 2)
    assert wrong.fault > REAL
    assert wrong.finding(rule).fix == fixes()[fix]
    script.write_text(fixed(script.read_text(), wrong.finding(rule).fix))
    right = run(stage, script, 2)
    assert right.fault < EXACT
    assert {f.rule for f in right.result.findings} <= {COST}


@pytest.mark.parametrize("name", OF_ONE_RANK)
def test_what_is_not_proved_on_two_ranks_is_a_program(name: str) -> None:
    assert name in PLAIN
