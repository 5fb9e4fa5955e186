"""The fixes of loops of one rank make the gradient exact on two, under DDP and FSDP2, too."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from museum.fixes.proof import EXACT, REAL, fixed, patched, run
from museum.fixes.table import CHANGED, OF_ONE_RANK, PLAIN, WRAPPED, fixes
from museum.fixes.wrapped import WRAPPERS, on_two_ranks
from museum.stage import Stage

HERE = Path(__file__).parent
COST = "ddp.missing_no_sync"  # no program is written for a no_sync; the gradient is the same
CASES = [(name, wrapper) for name in WRAPPED for wrapper in WRAPPERS]
# ``ranks/`` has programs of the same fixes, whose lines are not changed there
CASES += [(name, "ddp") for name in CHANGED if name not in WRAPPED]


@pytest.mark.parametrize(("name", "wrapper"), CASES)
def test_the_fix_that_is_shown_makes_the_gradient_exact(
    stage: Stage, name: str, wrapper: str, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    program = on_two_ranks((HERE / f"{name}.py").read_text(), wrapper)
    script.write_text(program)
    wrong = run(stage, script, 2)
    assert wrong.fault > REAL
    corrected = []
    if name in WRAPPED:
        rule, fix = PLAIN[name]
        assert wrong.finding(rule).fix == fixes()[fix]
        corrected.append(fixed(program, fixes()[fix]))
    if name in CHANGED:
        located = next(f for f in wrong.located if f.inhibited_by is None and f.rule != COST)
        assert CHANGED[name].strip("+- ") in located.fix
        corrected.append(patched(located.fix, program))
    for each in {ast.dump(ast.parse(each)): each for each in corrected}.values():
        script.write_text(each)
        right = run(stage, script, 2)
        assert right.fault < EXACT
        assert {f.rule for f in right.result.findings} <= {COST}
        assert right.result.verdict in ("balanced", "suspect")  # by the cost


@pytest.mark.parametrize("name", OF_ONE_RANK)
def test_what_is_not_proved_on_two_ranks_is_a_program(name: str) -> None:
    assert name in PLAIN
