"""What operators ask: is the process alive, and can it do its work."""

from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy import text

from gradledger_monitor.api.documents import refusals
from gradledger_monitor.api.state import Answer, GivenState
from gradledger_monitor.problems import Problem

router = APIRouter(tags=["operations"])


@router.get("/healthz")
async def get_health() -> Answer:
    """The process answers."""
    return Answer({"status": "alive"})


@router.get("/readyz", responses=refusals(503))
def get_readiness(state: GivenState) -> Answer:
    """The database answers and the judge works."""
    with state.store.reading() as connection:
        connection.execute(text("SELECT 1"))
    if not state.judge.works():
        raise Problem(503, "The judge has ended.")
    return Answer({"status": "ready"})
