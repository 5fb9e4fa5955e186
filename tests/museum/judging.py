"""What the real rules say of a played script, and how that compares with its label (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from gradledger_monitor.ingest import schema
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.model.step_facts import RunInfo, StepFacts, merge
from helpers.facts import judged
from museum.labels import Piece

LOUD = ("warning", "error")


@dataclass(frozen=True)
class Verdict:
    """One script, judged."""

    piece: Piece
    found: dict[str, int]  # rule -> first step, of findings that are heard
    verdict: str
    steps: int
    problem: str = ""  # why the script could not be judged

    @property
    def detected(self) -> bool:
        """Whether anything at all was said."""
        return bool(self.found)

    @property
    def named(self) -> bool:
        """Whether one of the findings is the mistake."""
        return bool(self.found.keys() & self.piece.expected)

    @property
    def exact(self) -> bool:
        """Whether the one finding is the mistake's own rule."""
        return self.found.keys() == {self.piece.label.expected}

    @property
    def noise(self) -> list[str]:
        """Findings that are not true of this script."""
        return sorted(self.found.keys() - self.piece.expected)

    @property
    def right(self) -> bool:
        """An incident named and nothing else said, a healthy script left alone."""
        named = self.named or self.piece.kind != "incident"
        return not self.problem and named and not self.noise

    @property
    def first_step(self) -> int | None:
        """When the mistake was first named."""
        return min((s for r, s in self.found.items() if r in self.piece.expected), default=None)


def judge(piece: Piece, seen: list[bytes]) -> Verdict:
    """Decode what each rank would have sent, and ask the engine."""
    steps = facts_of(seen)
    if not steps:
        return Verdict(piece, {}, "nothing seen", 0, "no optimizer step was recorded")
    return _verdict(piece, judged(steps), len(steps))


def is_heard(piece: Piece, rule: str, severity: str) -> bool:
    """Whether a finding counts: it raises an alarm, or is what this script is labelled with."""
    return severity in LOUD or rule == piece.label.expected


def _verdict(piece: Piece, evaluation: EvaluationResult, steps: int) -> Verdict:
    causes = [f for f in evaluation.findings if f.inhibited_by is None]
    found: dict[str, int] = {}
    for finding in (f for f in causes if is_heard(piece, f.rule, f.severity)):
        found[finding.rule] = min(finding.first_step, found.get(finding.rule, finding.first_step))
    return Verdict(piece, found, evaluation.verdict, steps)


def facts_of(seen: list[bytes]) -> list[StepFacts]:
    """The steps of all optimizers in the order of the clock, each with the records of all ranks."""
    ranks = [[schema.decoder.decode(line) for line in each.splitlines()] for each in seen]
    runs = [r for lines in ranks for r in lines if isinstance(r, schema.RunRecord)]
    if not runs:
        return []
    info = RunInfo("run", runs[0].name, len(ranks), optimizers=runs[0].optimizers)
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
