"""The shapes of answers, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from gradledger_monitor.model.findings import Acknowledgement, Finding, Severity, TreeNode, Verdict
from gradledger_monitor.store.runs.queries import RunRow


class ToldFinding(BaseModel):
    """What a training process hears of a finding in its own run."""

    rule: str
    severity: Severity
    optimizer: int
    since_step: int
    title: str
    summary: str
    fix: str


class Acknowledged(BaseModel):
    """Every line of the batch is durable; run records are not counted."""

    stored: int
    duplicates: int
    findings_id: str | None = None  # identifies the findings, if the sender requested them
    findings: list[ToldFinding] | None = None


class RunList(BaseModel):
    """One page of runs."""

    runs: list[RunRow]


class FindingList(BaseModel):
    """What the rules claim, causes before symptoms."""

    findings: list[Finding]


class Entry(BaseModel):
    """A line of the ledger; ``relative`` is rho: 1 is the fair weight."""

    rank: int
    micro_batch: int
    term: str
    tokens: float
    weight: float
    relative: float
    share: float  # of the window's gradient weight


class Ledger(BaseModel):
    """One window's account over all ranks: N, B, d and what they are made of."""

    tokens: float
    balance: float
    misallocation: float
    entries: list[Entry]


class StepDocument(BaseModel):
    """One optimizer step; records by rank, as they were sent.

    ``failure`` says why it could not be evaluated; such a step may have no figures.
    """

    optimizer: int
    step: int
    complete: bool
    figures: dict[str, float | None]
    ledger: Ledger | None
    failure: str | None = None
    records: dict[int, dict[str, Any]]


class FoundDocument(BaseModel):
    """One finding, in the form that other tools depend on."""

    rule: str
    severity: Severity
    first_step: int
    last_step: int
    steps: int
    title: str
    summary: str
    fix: str
    evidence: dict[str, Any]
    inhibited_by: str | None
    acknowledged: Acknowledgement | None


class VerdictDocument(BaseModel):
    """The answer of a run, as ``gradledger check --json`` writes it."""

    run: str
    verdict: Verdict
    steps: int
    ranks: int
    findings: list[FoundDocument]
    tree: list[TreeNode]
    coverage: dict[str, str]


class LineError(BaseModel):
    """Why something was refused; ``line`` where there are lines."""

    field: str
    reason: str
    line: int | None = None


class ProblemDocument(BaseModel):
    """RFC 9457. The four after ``detail`` come with refused records."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[LineError] = []
    stored: int | None = None
    duplicates: int | None = None
    refused: int | None = None
    request_id: str | None = None


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Documented problem answers."""
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    content = {"application/problem+json": {"schema": schema}}
    return {status: {"description": "Problem", "content": content} for status in statuses}
