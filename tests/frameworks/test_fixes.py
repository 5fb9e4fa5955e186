"""A fix that a finding shows makes the gradient exact, in the loops of frameworks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from museum.fixes.proof import EXACT, REAL, fixed, patched, run
from museum.fixes.table import (
    FRAMEWORKS,
    FRAMEWORKS_OF_LOOPS,
    FRAMEWORKS_OF_RANKS,
    FRAMEWORKS_ON_RANKS,
    fixes,
)
from museum.fixes.wrapped import with_data_of_ranks
from museum.stage import Stage

HERE = Path(__file__).parent / "fixes"
CONFIGURED = {
    "accelerate": "accelerate",
    "fabric": "fabric",
    "lightning": "lightning",
    "trainer": "transformers",
}
STATED = {  # by the framework
    "accelerate_entered_twice": {"Accelerator": "in use", "gradient_accumulation_steps": "4"},
}
COST = "ddp.missing_no_sync"  # Lightning's manual backward communicates; the gradient is the same
# By the programs, and by what watches them.
IMPORTED = ("accelerate", "lightning.pytorch", "transformers.trainer", "museum.fixes.proof")


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """The server, for all tests of this file."""
    one = Stage(IMPORTED)
    yield one
    one.close()


@pytest.mark.parametrize("name", [*FRAMEWORKS, *FRAMEWORKS_ON_RANKS])
def test_the_fix_that_is_shown_makes_the_gradient_exact(
    stage: Stage, name: str, tmp_path: Path
) -> None:
    program = HERE / f"{name}.py"
    config = {"framework": CONFIGURED[name.partition("_")[0]]}
    ranks = 2 if name in FRAMEWORKS_ON_RANKS else 1
    rule, fix = {**FRAMEWORKS, **FRAMEWORKS_ON_RANKS}[name]
    environment = STATED.get(name, {})
    wrong = run(stage, program, ranks, config=config, environment=environment)
    assert wrong.fault > REAL
    assert wrong.finding(rule).fix == fixes()[fix]
    script = tmp_path / program.name
    script.write_text(fixed(program.read_text(), wrong.finding(rule).fix))
    right = run(stage, script, ranks, config=config, environment=environment)
    assert right.fault < EXACT
    assert (right.result.verdict, right.result.findings) == ("balanced", [])


@pytest.mark.parametrize("name", FRAMEWORKS_OF_LOOPS)
def test_the_fix_of_a_loop_makes_the_gradient_exact_on_two_ranks(
    stage: Stage, name: str, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(with_data_of_ranks((HERE / f"{name}.py").read_text()))
    config = {"framework": CONFIGURED[name.partition("_")[0]]}
    rule, fix = FRAMEWORKS[name]
    wrong = run(stage, script, 2, config=config)
    assert wrong.fault > REAL
    assert wrong.finding(rule).fix == fixes()[fix]
    script.write_text(fixed(script.read_text(), wrong.finding(rule).fix))
    right = run(stage, script, 2, config=config)
    assert right.fault < EXACT
    assert {f.rule for f in right.result.findings} <= {COST}


CHANGED = {
    "accelerate_adds_by_itself": "+    accelerator.backward(loss / 4)",
    "accelerate_divided_in_the_call": "+        accelerator.backward(loss)",
    "fabric_not_divided": "+            fabric.backward(loss / 4)",
    "lightning_manual_divided_twice": "+        self.manual_backward(loss)",
    "lightning_manual_not_divided": "+        self.manual_backward(loss / 4)",
}


@pytest.mark.parametrize("name", CHANGED)
def test_the_change_of_the_line_makes_the_gradient_exact(
    stage: Stage, name: str, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text((HERE / f"{name}.py").read_text())
    config = {"framework": CONFIGURED[name.partition("_")[0]]}
    wrong = run(stage, script, config=config)
    finding = next(f for f in wrong.located if f.inhibited_by is None)
    assert CHANGED[name] in finding.fix.splitlines()
    script.write_text(patched(finding.fix, script.read_text()))
    right = run(stage, script, config=config)
    assert right.fault < EXACT
    assert (right.result.verdict, right.located) == ("balanced", [])


@pytest.mark.parametrize("name", FRAMEWORKS_OF_RANKS)
def test_a_fix_of_what_is_right_beside_the_gradient_leaves_it_exact(
    stage: Stage, name: str, tmp_path: Path
) -> None:
    program = HERE / f"{name}.py"
    config = {"framework": CONFIGURED[name.partition("_")[0]]}
    rule, fix = FRAMEWORKS_OF_RANKS[name]
    before = run(stage, program, 2, config=config)
    assert before.fault < EXACT
    assert before.finding(rule).fix == fixes()[fix]
    script = tmp_path / program.name
    script.write_text(fixed(program.read_text(), before.finding(rule).fix))
    after = run(stage, script, 2, config=config)
    assert after.fault < EXACT
    assert (after.result.verdict, after.result.findings) == ("balanced", [])
