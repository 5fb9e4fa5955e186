"""Evaluates a played script by the real rules, and compares the result with its label (pure)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import msgspec

from gradledger_monitor.evaluation.finding_code import with_code
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.code.locations import CodeLocation, LocationsByOptimizer
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.model.step_facts import RunInfo, StepFacts, merge
from helpers.facts import judged
from museum.labels import Piece

LOUD = ("warning", "error")


@dataclass(frozen=True)
class PieceResult:
    """The result of one script."""

    piece: Piece
    findings: dict[str, int]  # rule -> first step, of findings that count
    verdict: str
    steps: int
    problem: str = ""  # why the script could not be evaluated
    code: tuple[CodeLocation, ...] = ()  # where the finding of the expected rule points

    @property
    def detected(self) -> bool:
        """Whether there is any finding."""
        return bool(self.findings)

    @property
    def named(self) -> bool:
        """Whether one of the findings is the mistake."""
        return bool(self.findings.keys() & self.piece.expected)

    @property
    def exact(self) -> bool:
        """Whether the only finding is that of the expected rule."""
        return self.findings.keys() == {self.piece.label.expected}

    @property
    def wrong_findings(self) -> list[str]:
        """Findings that are wrong for this script."""
        return sorted(self.findings.keys() - self.piece.expected)

    @property
    def correct(self) -> bool:
        """An incident is named and nothing else is found; a healthy script has no finding."""
        named = self.named or self.piece.kind != "incident"
        return not self.problem and named and not self.wrong_findings

    @property
    def first_step(self) -> int | None:
        """When the mistake was first named."""
        return min((s for r, s in self.findings.items() if r in self.piece.expected), default=None)


def evaluate(piece: Piece, recorded: list[bytes]) -> PieceResult:
    """Evaluate what each rank would have sent."""
    steps = facts_of(recorded)
    if not steps:
        return PieceResult(piece, {}, "nothing recorded", 0, "no optimizer step was recorded")
    evaluation = judged(steps)
    located = with_code(evaluation.findings, locations_of(recorded))
    named = sorted(
        (f for f in located if f.rule in piece.expected),
        key=lambda finding: finding.rule != piece.label.expected,
    )
    code = named[0].code if named else ()
    return replace(_result(piece, evaluation, len(steps)), code=code)


def locations_of(recorded: list[bytes]) -> LocationsByOptimizer:
    """The calls of the script that the hooks located, by optimizer."""
    located: LocationsByOptimizer = {}
    for line in b"".join(recorded).splitlines():
        record = schema.decoder.decode(line)
        if isinstance(record, schema.StepRecord):
            calls = [msgspec.convert(msgspec.to_builtins(c), CodeLocation) for c in record.code]
            located.setdefault(record.optimizer, []).extend(calls)
    return located


def counts(piece: Piece, rule: str, severity: str) -> bool:
    """Whether a finding counts: it raises an alert, or is the one that the label expects."""
    return severity in LOUD or rule == piece.label.expected


def _result(piece: Piece, evaluation: EvaluationResult, steps: int) -> PieceResult:
    causes = [f for f in evaluation.findings if f.inhibited_by is None]
    findings: dict[str, int] = {}
    for finding in (f for f in causes if counts(piece, f.rule, f.severity)):
        first = findings.get(finding.rule, finding.first_step)
        findings[finding.rule] = min(finding.first_step, first)
    return PieceResult(piece, findings, evaluation.verdict, steps)


def facts_of(recorded: list[bytes], **session: Any) -> list[StepFacts]:
    """The steps of all optimizers in the order of the clock, each with the records of all ranks.

    ``session`` is what a session knows beyond its records, by the names of ``RunInfo``.
    """
    ranks = [[schema.decoder.decode(line) for line in each.splitlines()] for each in recorded]
    runs = [r for lines in ranks for r in lines if isinstance(r, schema.RunRecord)]
    if not runs:
        return []
    info = RunInfo("run", runs[0].name, len(ranks), optimizers=runs[0].optimizers, **session)
    steps = [
        (record.optimizer, record.step, rank, record)
        for rank, lines in enumerate(ranks)
        for record in lines
        if isinstance(record, schema.StepRecord)
    ]
    steps.sort(key=lambda s: s[:3])
    facts = [
        merge(info, optimizer, step, {rank: record for _, _, rank, record in group})
        for (optimizer, step), group in groupby(steps, key=lambda s: s[:2])
    ]
    return sorted(facts, key=lambda f: f.time)
