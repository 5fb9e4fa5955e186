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
    "loop/added_again": "loop.losses_added_again",
    "loop/clipped_each": "loop.clip_every_microbatch",
    "loop/never_zeroed": "loop.grads_not_zeroed",
    "loop/stepped_twice": "loop.double_step",
    "loop/steps_each": "loop.step_every_microbatch",
    "loop/tail_zeroed": "loop.discarded_microbatches",
    "loop/zeroed_before": "loop.zeroed_before_step",
    "loop/zeroed_each": "loop.zeroed_every_microbatch",
    "ranks/all_under_no_sync": "ddp.never_synced",
    "ranks/biases_left_out": "ddp.replica_drift",
    "ranks/by_hand_averaged": "reduction.world_size",
    "ranks/by_hand_summed": "reduction.world_size",
    "ranks/class_weighted": UNEQUAL,
    "ranks/combined_early": "ddp.wrong_microbatch_synced",
    "ranks/divided_twice": "reduction.double_division",
    "ranks/factor_of_one_part": "reduction.world_size",
    "ranks/first_synchronised": "ddp.wrong_microbatch_synced",
    "ranks/fsdp2_first_synchronised": "ddp.wrong_microbatch_synced",
    "ranks/fsdp2_not_synchronised": "ddp.never_synced",
    "ranks/mean_of_means": UNEQUAL,
    "ranks/not_divided": "reduction.missing_division",
    "ranks/other_divide_factor": "reduction.world_size",
    "ranks/outside_the_wrapper": "reduction.world_size",
    "ranks/over_world_size": "reduction.world_size",
    "ranks/summed_each": "ddp.missing_no_sync",
    "ranks/through_module": "ddp.never_synced",
    "ranks/times_world_size": "reduction.world_size",
    "ranks/uneven": "ddp.uneven_microbatches",
    "ranks/weighted_and_averaged": "reduction.world_size",
    "reduction/all_positions": "reduction.wrong_denominator",
    "reduction/bare_sum": "reduction.unnormalised_sum",
    "reduction/class_weighted": UNEQUAL,
    "reduction/divided_twice": "reduction.double_division",
    "reduction/first_letters": "reduction.wrong_denominator",
    "reduction/mean_of_means": UNEQUAL,
    "reduction/mean_of_means_divided_again": "reduction.double_division",
    "reduction/not_divided": "reduction.missing_division",
    "reduction/short_window": "reduction.partial_window",
    "reduction/smoothed_padding": "reduction.wrong_denominator",
    "reduction/sum_of_means": "reduction.missing_division",
    "scaler/bypassed_scaler": "scaler.step_bypassed",
    "scaler/clipped_while_scaled": "scaler.clip_before_unscale",
    "scaler/one_loss_unscaled": "scaler.unscaled_backward",
    "scaler/static_scale": "scaler.clip_before_unscale",
    "scaler/stepped_beside_the_scaler": "loop.double_step",
    "scaler/unscaled_in_between": "scaler.unscale_mid_window",
    "scaler/unscaled_twice": "scaler.double_unscale",
    "scaler/updated_each": "scaler.update_per_microbatch",
}


@pytest.mark.parametrize("name", RULES)
def test_the_fix_that_is_shown_makes_the_gradient_exact(
    stage: Stage, name: str, tmp_path: Path
) -> None:
    program, ranks = HERE / f"{name}.py", 2 if name.startswith("ranks/") else 1
    wrong = run(stage, program, ranks)
    assert wrong.fault > REAL
    script = tmp_path / program.name
    script.write_text(fixed(program.read_text(), wrong.finding(RULES[name]).fix))
    right = run(stage, script, ranks)
    assert right.fault < EXACT
    assert (right.result.verdict, right.result.findings) == ("balanced", [])


@pytest.mark.parametrize(
    ("name", "rule"),
    [("each_synchronised", "ddp.missing_no_sync"), ("started_apart", "ddp.replica_drift")],
)
def test_a_fix_of_what_is_right_beside_the_gradient_leaves_it_exact(
    stage: Stage, name: str, rule: str, tmp_path: Path
) -> None:
    program = HERE / "ranks" / f"{name}.py"
    before = run(stage, program, 2)
    assert before.fault < EXACT
    script = tmp_path / program.name
    script.write_text(fixed(program.read_text(), before.finding(rule).fix))
    after = run(stage, script, 2)
    assert after.fault < EXACT
    assert (after.result.verdict, after.result.findings) == ("balanced", [])


CHANGED = {
    "reduction/not_divided": "+        (loss / 4).backward()",
    "reduction/divided_twice": "+        loss.backward()",
    "loop/never_zeroed": "+    optimizer.zero_grad()",
    "loop/stepped_twice": "-    optimizer.step()",
    "loop/zeroed_before": "+    optimizer.step()",
    "scaler/clipped_while_scaled": "+    scaler.unscale_(optimizer)",
    "scaler/not_divided": "+        scaler.scale(loss / 4).backward()",
    "scaler/stepped_beside_the_scaler": "-    optimizer.step()",
}


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
    changed = [line.replace(rename, "") for line in finding.fix.splitlines()[3:]]
    assert CHANGED[name] in changed
    script.write_text(_applied(finding.fix, script.read_text()))
    right = run(stage, script)
    assert right.fault < EXACT
    assert (right.result.verdict, right.located) == ("balanced", [])


def _applied(diff: str, program: str) -> str:
    """The program with the lines of one hunk changed, as ``patch`` does it."""
    _, _, position, *hunk = diff.splitlines()
    first = int(position.split()[1].strip("-").partition(",")[0])
    lines = program.splitlines()
    before = [line[1:] for line in hunk if not line.startswith("+")]
    assert lines[first - 1 : first - 1 + len(before)] == before
    lines[first - 1 : first - 1 + len(before)] = [each[1:] for each in hunk if each[0] != "-"]
    return "\n".join(lines) + "\n"


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
