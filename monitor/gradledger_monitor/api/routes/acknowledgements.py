"""Acknowledgements of findings: why a finding is acceptable, and until when."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import Response
from pydantic import BaseModel, Field, StringConstraints

from gradledger_monitor.api.app_state import JsonResponse, StoreDep
from gradledger_monitor.api.middleware.credentials import token_name
from gradledger_monitor.api.routes.runs import RunId
from gradledger_monitor.api.schemas import problems
from gradledger_monitor.common.problems import Problem, invalid_values
from gradledger_monitor.model.findings import Acknowledgement
from gradledger_monitor.store.alerts import acknowledgements
from gradledger_monitor.store.alerts.acknowledgements import NoSuchFinding
from gradledger_monitor.store.runs.queries import UnknownRun

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])

PATH = "/{run}/findings/{rule}/acknowledgement"
RuleId = Annotated[str, Path(min_length=1, max_length=128)]
# a database cannot store NUL in a text
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, pattern=r"^[^\x00]*$")]


class AcknowledgementRequest(BaseModel):
    """A note on a finding. At ``until`` (Unix seconds) the acknowledgement expires."""

    note: Annotated[Text, Field(max_length=4000)]
    by: Annotated[Text, Field(max_length=256)] | None = None
    until: Annotated[float, Field(allow_inf_nan=False, strict=True)] | None = None


@router.put(PATH, response_model=Acknowledgement, responses=problems(404, 422))
def acknowledge(
    store: StoreDep, run: RunId, rule: RuleId, body: AcknowledgementRequest
) -> JsonResponse:
    """Acknowledge the findings of a rule in a run. They stay in the verdict, with this note."""
    now = time.time()
    if body.until is not None and body.until <= now:
        raise invalid_values(("body.until", "must be in the future, in Unix seconds"))
    acknowledgement = Acknowledgement(body.note, body.by or token_name(), now, body.until)
    try:
        acknowledgements.acknowledge(store, run, rule, acknowledgement)
    except (UnknownRun, NoSuchFinding) as error:
        raise _not_found(run, error) from error
    return JsonResponse(acknowledgement)


@router.delete(PATH, status_code=204, response_class=Response, responses=problems(404, 422))
def remove_acknowledgement(store: StoreDep, run: RunId, rule: RuleId) -> None:
    """Remove the acknowledgement. Alerts about the finding are sent again."""
    try:
        acknowledgements.remove_acknowledgement(store, run, rule)
    except (UnknownRun, NoSuchFinding) as error:
        raise _not_found(run, error) from error


def _not_found(run: str, error: LookupError) -> Problem:
    detail = f"There is no run {run!r}." if isinstance(error, UnknownRun) else f"{error}."
    return Problem(404, detail)
