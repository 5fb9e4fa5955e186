"""A fix that a finding shows makes the gradient exact, in the loops of frameworks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from museum.fixes.proof import EXACT, REAL, fixed, run
from museum.fixes.table import FRAMEWORKS, FRAMEWORKS_OF_RANKS, fixes
from museum.stage import Stage

HERE = Path(__file__).parent / "fixes"
CONFIGURED = {
    "accelerate": "accelerate",
    "fabric": "lightning",
    "lightning": "lightning",
    "trainer": "transformers",
}
IMPORTED = ("accelerate", "lightning.pytorch", "transformers.trainer")  # by the programs


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """The server, for all tests of this file."""
    one = Stage(IMPORTED)
    yield one
    one.close()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_fix_that_is_shown_makes_the_gradient_exact(
    stage: Stage, name: str, tmp_path: Path
) -> None:
    program = HERE / f"{name}.py"
    config = {"framework": CONFIGURED[name.partition("_")[0]]}
    rule, fix = FRAMEWORKS[name]
    wrong = run(stage, program, config=config)
    assert wrong.fault > REAL
    assert wrong.finding(rule).fix == fixes()[fix]
    script = tmp_path / program.name
    script.write_text(fixed(program.read_text(), wrong.finding(rule).fix))
    right = run(stage, script, config=config)
    assert right.fault < EXACT
    assert (right.result.verdict, right.result.findings) == ("balanced", [])


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
