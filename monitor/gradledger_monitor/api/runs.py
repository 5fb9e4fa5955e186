"""Runs out: lists, series, findings, single steps, and the verdict in its fixed form."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from gradledger_monitor import facts
from gradledger_monitor.api import documents
from gradledger_monitor.api.documents import (
    FindingList,
    RunList,
    StepDocument,
    VerdictDocument,
    refusals,
)
from gradledger_monitor.api.state import Answer, GivenStore
from gradledger_monitor.ledger import Ledger
from gradledger_monitor.problems import Problem
from gradledger_monitor.quarantine import CannotEvaluate, evaluating
from gradledger_monitor.store import reading
from gradledger_monitor.store.database import Store
from gradledger_monitor.verdict_json import verdict_json

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])

BIG = 2**53
RunId = Annotated[str, Path(min_length=1, max_length=128)]
Optimizer = Annotated[int, Path(ge=0, le=2**31 - 1)]
Step = Annotated[int, Path(ge=1, le=BIG)]


def existing(store: Store, run: str) -> reading.RunRow:
    """The run, or a 404 that names it."""
    row = reading.get_run(store, run)
    if row is None:
        raise Problem(404, f"There is no run {run!r}.")
    return row


@router.get("", response_model=RunList, responses=refusals(422))
def list_runs(
    store: GivenStore,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    offset: Annotated[int, Query(ge=0, le=BIG)] = 0,
    search: Annotated[str | None, Query(max_length=256)] = None,
) -> Answer:
    """Runs, the last heard of first."""
    return Answer({"runs": reading.list_runs(store, limit, offset, search)})


@router.get("/{run}", response_model=reading.RunRow, responses=refusals(404, 422))
def get_run(store: GivenStore, run: RunId) -> Answer:
    """One run."""
    return Answer(existing(store, run))


@router.get("/{run}/findings", response_model=FindingList, responses=refusals(404, 422))
def get_findings(store: GivenStore, run: RunId) -> Answer:
    """What the rules claim about a run, causes before symptoms."""
    existing(store, run)
    return Answer({"findings": reading.judgement(store, run).findings})


@router.get(
    "/{run}/quarantined", response_model=reading.QuarantinedSteps, responses=refusals(404, 422)
)
def get_quarantined(store: GivenStore, run: RunId) -> Answer:
    """Steps that could not be evaluated, and so were seen by no rule: the first 100, and why."""
    existing(store, run)
    return Answer(reading.quarantined(store, run))


@router.get("/{run}/verdict", response_model=VerdictDocument, responses=refusals(404, 422))
def get_verdict(store: GivenStore, run: RunId) -> Answer:
    """The answer, in the same form as ``gradledger check --json``."""
    row = existing(store, run)
    judgement = reading.judgement(store, run)
    return Answer(verdict_json(row.id, row.steps, row.world_size, judgement))


@router.get(
    "/{run}/steps/{optimizer}/{step}", response_model=StepDocument, responses=refusals(404, 422)
)
def get_step(store: GivenStore, run: RunId, optimizer: Optimizer, step: Step) -> Answer:
    """One step: its figures, the ledger of its micro-batches, and the records of all ranks."""
    existing(store, run)
    records = reading.step_records(store, run, optimizer, step)
    if not records:
        raise Problem(404, f"Run {run!r} has no step {step} of optimizer {optimizer}.")
    failure = reading.failure(store, run, optimizer, step)
    info = reading.run_info(store, run)
    document: dict[str, Any] = {"optimizer": optimizer, "step": step, "records": records}
    document |= {"complete": len(records) >= info.world_size, "figures": {}, "ledger": None}
    try:
        with evaluating(step):
            document |= _evaluated(facts.merge(info, optimizer, step, records))
    except CannotEvaluate as error:
        failure = failure or str(error)
    return Answer({**document, "failure": failure})


def _evaluated(merged: facts.StepFacts) -> dict[str, Any]:
    ledger = None if merged.ledger is None else _account(merged.ledger)
    return {"figures": merged.figures(), "ledger": ledger}


def _account(ledger: Ledger) -> dict[str, Any]:
    return {name: getattr(ledger, name) for name in documents.Ledger.model_fields}
