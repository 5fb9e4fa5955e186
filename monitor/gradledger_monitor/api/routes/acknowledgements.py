"""A person's word on a finding: it is known, and why that is all right."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import Response
from pydantic import BaseModel, Field, StringConstraints

from gradledger_monitor.api.app_state import JsonResponse, StoreDep
from gradledger_monitor.api.middleware.credentials import caller
from gradledger_monitor.api.routes.runs import RunId
from gradledger_monitor.api.schemas import problems
from gradledger_monitor.common.problems import Problem
from gradledger_monitor.model.findings import Acknowledgement
from gradledger_monitor.store.alerts import acknowledgements
from gradledger_monitor.store.alerts.acknowledgements import NoSuchFinding
from gradledger_monitor.store.runs.queries import UnknownRun

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])

PLACE = "/{run}/findings/{rule}/acknowledgement"
RuleId = Annotated[str, Path(min_length=1, max_length=128)]
# a database cannot keep the character 0 in a text
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, pattern=r"^[^\x00]*$")]


class Said(BaseModel):
    """What is said of a finding; ``until`` (Unix seconds) makes it news again from then on."""

    note: Annotated[Text, Field(max_length=4000)]
    by: Annotated[Text, Field(max_length=256)] | None = None
    until: Annotated[float, Field(allow_inf_nan=False, strict=True)] | None = None


@router.put(PLACE, response_model=Acknowledgement, responses=problems(404, 422))
def acknowledge(store: StoreDep, run: RunId, rule: RuleId, said: Said) -> JsonResponse:
    """Mark what a rule found in a run as known. It stays in the verdict, with this note."""
    now = time.time()
    if said.until is not None and said.until <= now:
        errors = [{"field": "body.until", "reason": "must lie in the future, in Unix seconds"}]
        raise Problem(422, "The request has values that are not accepted.", errors=errors)
    told = Acknowledgement(said.note, said.by or _name(), now, said.until)
    try:
        acknowledgements.acknowledge(store, run, rule, told)
    except (UnknownRun, NoSuchFinding) as error:
        raise _absent(run, error) from error
    return JsonResponse(told)


@router.delete(PLACE, status_code=204, response_class=Response, responses=problems(404, 422))
def take_back(store: StoreDep, run: RunId, rule: RuleId) -> None:
    """Take it back: the finding is news again."""
    try:
        acknowledgements.remove_acknowledgement(store, run, rule)
    except (UnknownRun, NoSuchFinding) as error:
        raise _absent(run, error) from error


def _name() -> str | None:
    """Whose token it came with, where the service asks for one."""
    known = caller.get()
    return known.token.name if known else None


def _absent(run: str, error: LookupError) -> Problem:
    said = f"There is no run {run!r}." if isinstance(error, UnknownRun) else f"{error}."
    return Problem(404, said)
