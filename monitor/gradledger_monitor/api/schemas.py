"""Response schemas, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from gradledger_monitor.model.code.locations import CodeLocation
from gradledger_monitor.model.findings import (
    Acknowledgement,
    Finding,
    Severity,
    Status,
    TreeNode,
    Verdict,
)
from gradledger_monitor.reports.objectives import ObjectiveSummary
from gradledger_monitor.reports.topology import RunTopology
from gradledger_monitor.store.runs.attempts import Attempt
from gradledger_monitor.store.runs.queries import RunRow


class FindingNotice(BaseModel):
    """A finding, as it is sent to the training process of its run."""

    rule: str
    severity: Severity
    optimizer: int
    since_step: int
    title: str
    summary: str
    fix: str


class RunStateNotice(BaseModel):
    """A run's verdict and how far it is evaluated. ``gradledger run`` writes its summary from it.

    The verdict includes all records once ``evaluated_revision`` reaches ``revision``. The page of
    the run has the address ``/runs/`` and the id of the run, below the URL of the service.
    """

    verdict: str  # ``balanced``, ``suspect``, ``broken`` or ``incomplete``
    steps: int  # optimizer steps that are evaluated
    revision: int  # number of batches of the run that are stored
    evaluated_revision: int  # everything up to this batch is evaluated
    ended: bool  # whether every rank reported its end


class BatchResult(BaseModel):
    """Every line of the batch is durable. Run records are not counted.

    The last three fields are there only if the request has the header ``Gradledger-Findings``. Its
    value is the last ``findings_id`` that the sender got, or any other text.
    """

    stored: int  # records that are new
    duplicates: int  # records that were stored before
    findings_id: str | None = None  # identifies the findings, like an ETag
    findings: list[FindingNotice] | None = None  # that are open; empty if the sender has this id
    run: RunStateNotice | None = None  # the state of the last run in the batch


class RunList(BaseModel):
    """One page of runs."""

    runs: list[RunRow]


class AttemptList(BaseModel):
    """The attempts of a job, the first one first."""

    attempts: list[Attempt]


class FindingList(BaseModel):
    """Findings, causes before symptoms."""

    findings: list[Finding]


class LedgerEntry(BaseModel):
    """An entry of the ledger; ``relative`` is rho: 1 is the fair weight."""

    rank: int
    micro_batch: int
    term: str
    tokens: float
    weight: float
    relative: float
    share: float  # of the window's gradient weight


class LedgerDocument(BaseModel):
    """The ledger of one window over all ranks: N, B, d and their entries."""

    tokens: float
    balance: float
    misallocation: float
    entries: list[LedgerEntry]


class ObjectiveDocument(BaseModel):
    """One objective of a step, its verdict, and its ledger.

    ``count`` is N in ``unit``, and ``share`` its part of the gradient weight of all objectives.
    """

    name: str
    unit: str | None
    count: float | None
    balance: float | None
    misallocation: float | None
    coefficient: float | None
    share: float | None
    status: Status
    text: str
    ledger: LedgerDocument


class StepDocument(BaseModel):
    """One optimizer step; ``records`` are the records that were sent, by rank.

    ``failure`` is why it could not be evaluated; such a step may have no figures.
    """

    optimizer: int
    step: int
    complete: bool
    figures: dict[str, float | None]
    ledger: LedgerDocument | None
    objectives: list[ObjectiveDocument] = []
    failure: str | None = None
    records: dict[int, dict[str, Any]]


class VerdictFinding(BaseModel):
    """A finding in a verdict: a stable format that other tools depend on."""

    rule: str
    severity: Severity
    first_step: int
    last_step: int
    steps: int
    title: str
    summary: str
    fix: str
    fix_is_generic: bool  # an example for any script, not a change of its lines
    evidence: dict[str, Any]
    inhibited_by: str | None
    acknowledged: Acknowledgement | None
    code: list[CodeLocation] = []


class VerdictDocument(BaseModel):
    """The verdict of a run, as ``gradledger check --json`` writes it."""

    run: str
    verdict: Verdict
    steps: int
    ranks: int
    findings: list[VerdictFinding]
    tree: list[TreeNode]
    coverage: dict[str, str]
    objectives: list[ObjectiveSummary]
    topology: RunTopology | None
    commit: str | None
    dirty: str | None


class FieldError(BaseModel):
    """Why a field was refused; ``line`` is set for batches of records."""

    field: str
    reason: str
    line: int | None = None


class ProblemDocument(BaseModel):
    """RFC 9457. Refused records have ``errors``, ``stored``, ``duplicates`` and ``refused``."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldError] = []
    stored: int | None = None
    duplicates: int | None = None
    refused: int | None = None
    request_id: str | None = None


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses for problems with these statuses."""
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    content = {"application/problem+json": {"schema": schema}}
    return {status: {"description": "Problem", "content": content} for status in statuses}
