"""Runs over HTTP: the list, findings, quarantined steps, single steps and the verdict."""

from __future__ import annotations

import logging
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from gradledger_monitor.api import schemas
from gradledger_monitor.api.app_state import JsonResponse, StoreDep
from gradledger_monitor.api.middleware.credentials import token_name
from gradledger_monitor.api.schemas import (
    AttemptList,
    FindingList,
    RunList,
    StepDocument,
    VerdictDocument,
    problems,
)
from gradledger_monitor.common.problems import Problem
from gradledger_monitor.evaluation.quarantine import CannotEvaluate, evaluating
from gradledger_monitor.model import step_facts
from gradledger_monitor.model.chart_metrics import chart_metrics
from gradledger_monitor.model.code.revision import revision_of
from gradledger_monitor.model.token_ledger import Ledger
from gradledger_monitor.reports.objectives import recent_objectives
from gradledger_monitor.reports.topology import run_topology
from gradledger_monitor.reports.verdict_json import verdict_json
from gradledger_monitor.rules.objective_verdicts import ObjectiveVerdict, objective_verdicts
from gradledger_monitor.rules.rule import Window
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.runs.attempts import attempts
from gradledger_monitor.store.runs.deletion import delete_run as delete
from gradledger_monitor.store.runs.queries import UnknownRun

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])
log = logging.getLogger(__name__)

MAX_STEP = 2**53
RunId = Annotated[str, Path(min_length=1, max_length=128)]
Optimizer = Annotated[int, Path(ge=0, le=2**31 - 1)]
Step = Annotated[int, Path(ge=1, le=MAX_STEP)]


def require_run(store: Store, run: str) -> queries.RunRow:
    """The run, or a 404 that names it."""
    row = queries.get_run(store, run)
    if row is None:
        raise Problem(404, f"There is no run {run!r}.")
    return row


@router.get("", response_model=RunList, responses=problems(422))
def list_runs(
    store: StoreDep,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    offset: Annotated[int, Query(ge=0, le=MAX_STEP)] = 0,
    search: Annotated[str | None, Query(max_length=256)] = None,
) -> JsonResponse:
    """Runs, the one with the latest record first."""
    return JsonResponse({"runs": queries.list_runs(store, limit, offset, search)})


@router.get("/{run}", response_model=queries.RunRow, responses=problems(404, 422))
def get_run(store: StoreDep, run: RunId) -> JsonResponse:
    """One run."""
    return JsonResponse(require_run(store, run))


@router.delete("/{run}", status_code=204, response_class=Response, responses=problems(404, 422))
def delete_run(store: StoreDep, run: RunId) -> None:
    """Delete a run with all of its data. A run that still sends appears again."""
    try:
        delete_and_log(store, run)
    except UnknownRun as error:
        raise Problem(404, f"There is no run {run!r}.") from error


def delete_and_log(store: Store, run: str) -> None:
    """Delete a run, and log by which token. Raises ``UnknownRun``."""
    delete(store, run)
    name = token_name()
    log.warning("run %s was deleted%s", run, f" with the token {name}" if name else "")


@router.get("/{run}/findings", response_model=FindingList, responses=problems(404, 422))
def get_findings(store: StoreDep, run: RunId) -> JsonResponse:
    """The findings of a run, causes before symptoms."""
    require_run(store, run)
    return JsonResponse({"findings": queries.evaluation(store, run).findings})


@router.get(
    "/{run}/quarantined",
    response_model=queries.QuarantinedSteps,
    responses=problems(404, 422),
)
def get_quarantined(store: StoreDep, run: RunId) -> JsonResponse:
    """Steps that could not be evaluated, so that no rule applied: the first 100, and why."""
    require_run(store, run)
    return JsonResponse(queries.quarantined_steps(store, run))


@router.get("/{run}/attempts", response_model=AttemptList, responses=problems(404, 422))
def get_attempts(store: StoreDep, run: RunId) -> JsonResponse:
    """The attempts of the job of a run, which a launcher started again, in order.

    Restarts of one torchrun and starts of one requeued SLURM job are attempts. The list includes
    the run itself, and is empty if the run is the only one.
    """
    require_run(store, run)
    return JsonResponse({"attempts": attempts(store, run)})


@router.get("/{run}/verdict", response_model=VerdictDocument, responses=problems(404, 422))
def get_verdict(store: StoreDep, run: RunId) -> JsonResponse:
    """The verdict, in the format of ``gradledger check --json``.

    Its objectives are those of the last 50 steps of each optimizer. A loss that only earlier steps
    have is not among them, and losses of equal form that no layer separates are one.
    """
    row = require_run(store, run)
    evaluation = queries.evaluation(store, run)
    objectives = recent_objectives(store, run, evaluation.findings)
    topology = run_topology(store, run)
    document = verdict_json(
        row.id,
        row.steps,
        row.world_size,
        evaluation,
        objectives,
        topology,
        revision_of(row.environment),
    )
    return JsonResponse(document)


@router.get(
    "/{run}/steps/{optimizer}/{step}",
    response_model=StepDocument,
    responses=problems(404, 422),
)
def get_step(store: StoreDep, run: RunId, optimizer: Optimizer, step: Step) -> JsonResponse:
    """One step: its figures, its ledger, and the records of all ranks."""
    require_run(store, run)
    records = queries.step_records(store, run, optimizer, step)
    if not records:
        raise Problem(404, f"Run {run!r} has no step {step} of optimizer {optimizer}.")
    failure = queries.step_failure(store, run, optimizer, step)
    info = queries.run_info(store, run)
    document: dict[str, Any] = {"optimizer": optimizer, "step": step, "records": records}
    document |= {"complete": len(records) >= info.world_size, "figures": {}, "ledger": None}
    try:
        with evaluating(step):
            document |= _evaluated(step_facts.merge(info, optimizer, step, records))
    except CannotEvaluate as error:
        failure = failure or str(error)
    return JsonResponse({**document, "failure": failure})


def _evaluated(facts: step_facts.StepFacts) -> dict[str, Any]:
    verdicts = objective_verdicts(Window(facts))
    return {
        "figures": chart_metrics(facts),
        "ledger": None if facts.ledger is None else _ledger(facts.ledger),
        "objectives": [_objective(verdict) for verdict in verdicts],
    }


def _objective(verdict: ObjectiveVerdict) -> dict[str, Any]:
    names = [name for name in schemas.ObjectiveDocument.model_fields if name != "ledger"]
    return {**{name: getattr(verdict, name) for name in names}, "ledger": _ledger(verdict.ledger)}


def _ledger(ledger: Ledger) -> dict[str, Any]:
    return {name: getattr(ledger, name) for name in schemas.LedgerDocument.model_fields}
