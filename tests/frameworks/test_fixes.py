"""A fix that a finding shows makes the gradient exact, in the loops of frameworks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from museum.fixes.proof import EXACT, REAL, fixed, run
from museum.stage import Stage

HERE = Path(__file__).parent / "fixes"
UNEQUAL = "reduction.token_weights_unequal"
NOT_DIVIDED = "reduction.missing_division"
DIVIDED_TWICE = "reduction.double_division"
ZEROED = "loop.zeroed_every_microbatch"
RULES = {
    "accelerate_mean_of_means": UNEQUAL,
    "accelerate_not_divided": NOT_DIVIDED,
    "accelerate_divided_twice": DIVIDED_TWICE,
    "accelerate_divided_in_the_call": DIVIDED_TWICE,
    "accelerate_zeroed_each": ZEROED,
    "accelerate_discarded": "loop.discarded_microbatches",
    "accelerate_added_again": "loop.losses_added_again",
    "lightning_mean_of_means": UNEQUAL,
    "lightning_divided_twice": DIVIDED_TWICE,
    "lightning_manual_not_divided": NOT_DIVIDED,
    "lightning_manual_divided_twice": DIVIDED_TWICE,
    "lightning_manual_zeroed_each": ZEROED,
    "trainer_model_even": NOT_DIVIDED,
    "trainer_model_uneven": UNEQUAL,
    "trainer_compute_loss_even": NOT_DIVIDED,
    "trainer_compute_loss_uneven": UNEQUAL,
    "trainer_training_step_even": NOT_DIVIDED,
    "trainer_training_step_uneven": NOT_DIVIDED,
    "trainer_zeroed_each": ZEROED,
}
FRAMEWORKS = {"accelerate": "accelerate", "lightning": "lightning", "trainer": "transformers"}
IMPORTED = ("accelerate", "lightning.pytorch", "transformers.trainer")  # by the programs


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """The server, for all tests of this file."""
    one = Stage(IMPORTED)
    yield one
    one.close()


@pytest.mark.parametrize("name", RULES)
def test_the_fix_that_is_shown_makes_the_gradient_exact(
    stage: Stage, name: str, tmp_path: Path
) -> None:
    program = HERE / f"{name}.py"
    config = {"framework": FRAMEWORKS[name.partition("_")[0]]}
    wrong = run(stage, program, config=config)
    assert wrong.fault > REAL
    script = tmp_path / program.name
    script.write_text(fixed(program.read_text(), wrong.finding(RULES[name]).fix))
    right = run(stage, script, config=config)
    assert right.fault < EXACT
    assert (right.result.verdict, right.result.findings) == ("balanced", [])
