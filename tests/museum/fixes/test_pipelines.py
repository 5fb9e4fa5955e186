"""The fixes that are shown for a pipeline make the gradient of each stage exact."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradledger_monitor.rules.reduction import fixes
from helpers.facts import judged
from museum.evaluation import facts_of
from museum.fixes.proof import EXACT, REAL
from museum.stage import Stage

# The learning rate is 0, so that each rank has the weights of all stages.
PROGRAM = """
import torch
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from museum.parts import EVEN, RAGGED, staged_lm, text, token_loss, two_ranks, valid, whole_batch

K, errors = 4, []
with two_ranks() as rank:
    torch.manual_seed(0)
    model = staged_lm(2)
    stage = PipelineStage(model[rank], rank, 2, torch.device("cpu"))

    def loss_fn(logits, labels):
        return token_loss(logits, labels){divided}

    # where the schedule is created
    schedule = Schedule1F1B(stage, K, loss_fn=loss_fn, scale_grads={scale})
    # end
    optimizer = torch.optim.SGD(model[rank].parameters(), lr=0.0)
    for window in text(4, lengths={lengths}):
        ids, labels = whole_batch(window)
        # before schedule.step
        # end
        schedule.step(*([ids] if rank == 0 else []), **({{"target": labels}} if rank else {{}}))
        own = list(model[rank].parameters())
        true = torch.autograd.grad(token_loss(model(ids), labels), own)
        wrong = [(p.grad - t).norm() / t.norm() for p, t in zip(own, true)]
        errors.append(float(max(wrong)))
        optimizer.step()
        optimizer.zero_grad()
print("error", max(errors))
"""
CASES = {
    "mean of means": ("RAGGED", True, "", "reduction.token_weights_unequal"),
    "not divided": ("EVEN", False, "", "reduction.missing_division"),
    "divided twice": ("EVEN", True, " / K", "reduction.double_division"),
}


def fixed(program: str, fix: str) -> str:
    """The program with the lines of the fix at the places that its comments name."""
    parts = re.split(r"^# (.*):\n", fix, flags=re.MULTILINE)[1:]
    for place, lines in zip(parts[::2], parts[1::2], strict=True):
        name = place.split(",")[0]
        begin = re.search(rf"^( *)# {re.escape(name)}\n", program, flags=re.MULTILINE)
        assert begin is not None, name
        indented = "".join(begin.group(1) + line + "\n" for line in lines.splitlines())
        end = program.index("# end\n", begin.end())
        program = program[: begin.end()] + indented + begin.group(1) + program[end:]
    return program


@pytest.mark.parametrize("case", CASES)
def test_the_fix_that_is_shown_makes_the_gradient_exact(
    stage: Stage, case: str, tmp_path: Path
) -> None:
    lengths, scale, divided, rule = CASES[case]
    text = PROGRAM.format(lengths=lengths, scale=scale, divided=divided)
    fault, named, verdict = _run(stage, text, tmp_path)
    assert fault > REAL
    assert [*named] == [rule]
    fault, named, verdict = _run(stage, fixed(text, named[rule]), tmp_path)
    assert fault < EXACT
    assert (verdict, named) == ("balanced", {})


def _run(stage: Stage, text: str, folder: Path) -> tuple[float, dict[str, str], str]:
    """The largest error of a gradient, the fix of each finding by its rule, and the verdict."""
    script = folder / "program.py"
    script.write_text(text)
    played = stage.play(script, 2)
    assert not played.failed, played.printed
    errors = [float(each) for each in re.findall(r"^error (.*)$", played.printed, re.MULTILINE)]
    result = judged(facts_of(played.recorded))
    return max(errors), {f.rule: f.fix for f in result.findings}, result.verdict


def test_fixes_of_pipelines_are_all_proved() -> None:
    shown = {
        fix
        for group in (fixes.TOKEN_MEAN, fixes.MICRO_BATCH_MEAN, fixes.ONE_DIVISION)
        if (fix := group.get("pipeline"))
    }
    assert len(shown) == len(CASES)
