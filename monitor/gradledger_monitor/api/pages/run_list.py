"""The page with the list of runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from gradledger_monitor.api.app_state import StoreDep
from gradledger_monitor.api.pages.layout import page, run_command
from gradledger_monitor.common import clock
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import listing, notes
from gradledger_monitor.store.runs.listing import SORTS, RunFilter
from gradledger_monitor.store.runs.queries import RunRow
from gradledger_monitor.store.runs.tags import ARCHIVED
from gradledger_monitor.store.steps import curves
from gradledger_monitor.store.steps.curves import Span
from gradledger_web import progress
from gradledger_web.runs import columns as run_columns

router = APIRouter(include_in_schema=False)

PAGE = 50
MOST_COURSES = 2000  # of losses that are kept: about 1 kB each


@router.get("/")
def list_runs(
    request: Request, store: StoreDep, offset: Annotated[int, Query(ge=0, le=2**31)] = 0
) -> HTMLResponse:
    """All runs, or those that match a filter, optionally grouped by name."""
    run_filter, grouped = _run_filter(request.query_params), "group" in request.query_params
    offset -= offset % PAGE
    total = (listing.count_groups if grouped else listing.count_runs)(store, run_filter)
    rows = [] if grouped else listing.matching_runs(store, run_filter, PAGE, offset)
    ids = [row.id for row in rows]
    rates, now = listing.rates(store, ids), clock.now()
    columns = run_columns.chosen(request.query_params.getlist("column"))
    return page(
        "runs.html",
        rows=rows,
        columns=columns,
        all_columns=run_columns.NAMED,
        default_columns=columns == run_columns.DEFAULT,
        config_keys=run_columns.config_keys(row.config for row in rows),
        losses=_losses(store, rows) if "loss" in columns else {},
        findings=listing.finding_counts(store, ids),
        tally=listing.verdict_counts(store, run_filter),
        groups=listing.groups(store, run_filter, PAGE, offset) if grouped else [],
        grouped=grouped,
        progress={row.id: progress.progress_of(row, rates.get(row.id), now) for row in rows},
        acknowledged=listing.acknowledged(store, ids, now),
        tags=listing.tags_of(store, ids),
        notes=notes.notes_of(store, ids),
        total=total,
        wanted=run_filter,
        filtered=run_filter != RunFilter(sort=run_filter.sort, ascending=run_filter.ascending),
        projects=listing.projects(store),
        known_tags=listing.all_tags(store),
        archived=ARCHIVED,
        offset=offset,
        limit=PAGE,
        link=_linker(run_filter, grouped, columns),
        command=run_command(request),
    )


def _losses(store: Store, rows: list[RunRow]) -> dict[str, run_columns.LossCourse | None]:
    """The course of the loss of each run."""
    return {row.id: _loss(store, row.id, row.steps, row.last_seen) for row in rows}


@lru_cache(maxsize=MOST_COURSES)
def _loss(store: Store, run: str, steps: int, last_seen: float) -> run_columns.LossCourse | None:
    """Computed again only after the run sent something or was evaluated further."""
    losses, points = run_columns.LOSSES, run_columns.POINTS
    course = curves.curves(store, run, metrics=losses, points=points)
    last = int(course["step"][-1]) if course["step"] else 0
    end = Span(0, max(last - points, 0))  # so few that each step is a point
    return run_columns.loss_course(course, curves.curves(store, run, end, losses))


def _run_filter(query: Mapping[str, str]) -> RunFilter:
    texts = ("search", "project", "verdict", "tag", "name")
    sort = query.get("sort", "seen")
    return RunFilter(
        **{name: query.get(name, "").replace("\0", "").strip() for name in texts},
        sort=sort if sort in SORTS else "seen",
        ascending=query.get("order") == "up",
    )


def _linker(run_filter: RunFilter, grouped: bool, columns: tuple[str, ...]) -> Any:
    """A function that returns the URL of this page with some parameters replaced."""
    current = {
        "search": run_filter.search,
        "project": run_filter.project,
        "verdict": run_filter.verdict,
        "tag": run_filter.tag,
        "name": run_filter.name,
        "sort": run_filter.sort if run_filter.sort != "seen" else "",
        "order": "up" if run_filter.ascending else "",
        "group": "name" if grouped else "",
        "column": columns if columns != run_columns.DEFAULT else "",
    }

    def link(**changes: Any) -> str:
        query = {name: value for name, value in {**current, **changes}.items() if value}
        return f"/?{urlencode(query, doseq=True)}" if query else "/"

    return link
