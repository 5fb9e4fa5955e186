"""Hooks of the script in a step, after the witness of ``truth/`` has looked."""

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


DIVIDING = """
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def divide(*_):
    for parameter in model.parameters():
        parameter.grad /= 4


HOOK

for window in text(6, lengths=EVEN):
    for ids, labels in window:
        (token_loss(model(ids), labels) / DIVISOR).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
OF_ONE = "optimizer.register_step_pre_hook(divide)"
OF_ALL = "register_optimizer_step_pre_hook(divide)"


@pytest.mark.parametrize("hook", [OF_ONE, OF_ALL])
@pytest.mark.parametrize(
    ("divisor", "rules"), [("1", set()), ("len(window)", {"reduction.double_division"})]
)
def test_what_a_hook_of_the_step_divides_is_measured(
    stage: Stage, hook: str, divisor: str, rules: set[str], tmp_path: Path
) -> None:
    script = tmp_path / "loop.py"
    script.write_text(DIVIDING.replace("HOOK", hook).replace("DIVISOR", divisor))
    played = stage.play(script)
    assert not played.failed, played.printed
    assert {f.rule for f in judged(facts_of(played.recorded)).findings} == rules
