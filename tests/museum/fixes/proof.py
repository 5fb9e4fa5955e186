"""Runs a program as it is and with the lines of the fix that its finding shows."""

from __future__ import annotations

import io
import math
import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradledger_monitor.evaluation.finding_code import with_code
from gradledger_monitor.model.findings import CHANGE_AT, EvaluationResult, Finding
from helpers.facts import judged
from museum.evaluation import facts_of, locations_of
from museum.labels import Label
from museum.stage import Stage
from museum.truth import CHECKS, gradient
from museum.truth.seen import Step, look
from museum.watching import with_hooks

EXACT = 1e-5  # relative error of a gradient in float32 against one in float64
REAL = 1e-2  # of one with a mistake

_PLACE = re.compile(
    r"^(?P<indent> *)# fix(?:: (?P<place>.+))?\n(?:.*\n)*?(?P=indent) *# end\n", re.M
)
_PART = re.compile(r"^# (.+):$", re.M)


@dataclass(frozen=True)
class Run:
    """What a program did: the result of its evaluation, and the error of its worst gradient."""

    result: EvaluationResult
    fault: float
    located: list[Finding] = field(default_factory=list)  # with the lines of the program

    def finding(self, rule: str) -> Finding:
        """The finding of one rule."""
        return next(f for f in self.result.findings if f.rule == rule)


def run(stage: Stage, script: Path, ranks: int = 1, **info: Any) -> Run:
    """Run a program; ``info`` is what a real session knows of its framework."""
    played = stage.play(script, ranks, watch="fix")
    assert not played.failed, played.printed
    parts = [torch.load(io.BytesIO(each), weights_only=False) for each in played.recorded]
    records = [part["records"] for part in parts]
    if "fully_shard" in script.read_text():  # the witness runs collectives that gather shards
        records = stage.play(script, ranks).recorded
    result = judged(facts_of(records, **info))
    located = with_code(result.findings, locations_of(records))
    fault = _fault(parts[0]["evidence"], [part["testimony"] for part in parts])
    return Run(result, fault, located)


def _fault(evidence: str, ranks: list[dict[str, Any]]) -> float:
    if evidence != "gradient":
        return CHECKS[evidence].fault(ranks)
    if any(rank["steps"] is None for rank in ranks):
        return math.inf
    return gradient.fault_after_clipping(ranks) if ranks[0]["max_norm"] else gradient.fault(ranks)


def fixed(program: str, fix: str) -> str:
    """The program with the lines of the fix at their places."""
    parts = _parts(fix)
    places = {match["place"] for match in _PLACE.finditer(program)}
    assert places & parts.keys(), f"no place of {sorted(places, key=str)} is in the fix:\n{fix}"

    def lines(match: re.Match[str]) -> str:
        code = parts.get(match["place"], "").replace("...", "**options")
        return textwrap.indent(code, match["indent"])

    return _PLACE.sub(lines, program)


def _parts(fix: str) -> dict[str | None, str]:
    before, *rest = _PART.split(fix)
    parts: dict[str | None, str] = dict(zip(rest[::2], rest[1::2], strict=True))
    return {place: f"{code.strip()}\n" for place, code in {None: before, **parts}.items() if code}


def hunk_of(fix: str) -> tuple[int, list[str]]:
    """The first line and the lines of a change: these programs are outside of any repository."""
    head, *hunk = fix.splitlines()
    assert head.startswith(CHANGE_AT), fix
    return int(head.removeprefix(CHANGE_AT).split()[0]), hunk


def patched(fix: str, program: str) -> str:
    """The program with the lines of one hunk changed, as ``patch`` does it."""
    first, hunk = hunk_of(fix)
    lines = program.splitlines()
    before = [line[1:] for line in hunk if not line.startswith("+")]
    assert lines[first - 1 : first - 1 + len(before)] == before
    lines[first - 1 : first - 1 + len(before)] = [each[1:] for each in hunk if each[0] != "-"]
    return "\n".join(lines) + "\n"


def observe(script: Path, output: Path) -> None:
    """In the process of the program: its records, and its gradients beside the true ones."""
    steps: list[Step] = []
    testimony: dict[str, Any] = {}

    def after(optimizer: Any, *_: Any) -> None:
        steps[-1].gradients = look(optimizer).gradients  # a closure makes them in the step

    handles = (
        register_optimizer_step_pre_hook(lambda optimizer, *_: steps.append(look(optimizer))),
        register_optimizer_step_post_hook(after),
    )

    def then(names: dict[str, Any]) -> None:
        for handle in handles:
            handle.remove()
        evidence = names.get("evidence", "gradient")
        label = Label("", "", objective=names.get("objective", "tokens"))
        testimony["evidence"] = evidence
        testimony["testimony"] = _told(evidence, label, names, steps)

    with_hooks(script, output, then=then)
    torch.save({"records": output.read_bytes(), **testimony}, output)


def _told(evidence: str, label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    if evidence == "gradient" and not steps:
        return {"steps": None, "max_norm": None}
    return CHECKS[evidence].tell(label, names, steps)
