"""A hook of the step waits for an all-reduce, after the witness of ``truth/`` has looked."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.facts import judged
from museum.evaluation import facts_of
from museum.stage import Stage

LOOP = """
import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def wait(optimizer, args, kwargs):
        work.wait()
        parts = flat.split([parameter.numel() for parameter in model.parameters()])
        for parameter, part in zip(model.parameters(), parts, strict=True):
            parameter.grad.copy_(part.view_as(parameter) * FACTOR)

    optimizer.register_step_pre_hook(wait)

    for window in text(6, seed=1 + rank, lengths=EVEN):
        for ids, labels in window:
            (token_loss(model(ids), labels) / len(window)).backward()
        flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        work = dist.all_reduce(flat, async_op=True)
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(("factor", "rules"), [("1", {"reduction.world_size"}), ("0.5", set())])
def test_a_sum_that_a_hook_of_the_step_waits_for_is_named(
    stage: Stage, factor: str, rules: set[str], tmp_path: Path
) -> None:
    script = tmp_path / "loop.py"
    script.write_text(LOOP.replace("FACTOR", factor))
    played = stage.play(script, ranks=2)
    assert not played.failed, played.printed
    evaluation = judged(facts_of(played.recorded))
    assert {f.rule for f in evaluation.findings} == rules
    assert evaluation.verdict == ("suspect" if rules else "balanced")
