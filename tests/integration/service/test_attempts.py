"""The attempts of a job in the API, on the page and in the post-mortem of each of its runs."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import select, update

from gradledger_monitor.reports.incident import build_incident
from gradledger_monitor.reports.render import html, markdown
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.attempts import MOST_SHOWN, attempts, has_later
from gradledger_monitor.store.runs.deletion import delete_run
from gradledger_monitor.store.tables import runs
from helpers import http
from helpers.batches import batch, eventually, fair_step, step
from helpers.patience import HANGS
from helpers.sending import evaluate_pending, send
from helpers.service import Service

START = 1_700_000_000.0


def environment(restarts: int, launch: str = "1f2e") -> dict[str, str]:
    return {"torchrun launch": launch, "torchrun restarts": str(restarts)}


def of(store: Store, run: str) -> list[tuple[int, str, int]]:
    return [(each.number, each.run, each.steps) for each in attempts(store, run)]


def test_runs_are_linked_by_what_rank_0_sent_in_order_of_their_start(store: Store) -> None:
    for restarts, run in enumerate(("a", "b")):
        started = START + 60 - restarts
        for rank, launch in ((1, "another node"), (0, "1f2e")):
            sent: dict[str, Any] = {
                "environment": environment(restarts, launch),
                "started": started,
                "rank": rank,
            }
            send(store, [fair_step(1)], run=run, world_size=2, **sent)
    send(store, [fair_step(1)], run="other", environment=environment(1, "77aa"), started=START)
    send(store, [fair_step(1)], run="plain", started=START)
    assert of(store, "a") == of(store, "b") == [(1, "b", 0), (2, "a", 0)]
    assert of(store, "other") == of(store, "plain") == of(store, "unknown") == []
    delete_run(store, "b")
    assert of(store, "a") == []


def test_a_run_finds_its_attempts_by_an_index(store: Store) -> None:
    send(store, [fair_step(1)], run="a", environment=environment(0))
    if store.engine.dialect.name == "sqlite":
        with store.reading() as connection:
            job = "SELECT job FROM runs WHERE id = 'a'"
            query = f"EXPLAIN QUERY PLAN SELECT * FROM runs WHERE job = ({job})"
            plan = connection.exec_driver_sql(query).all()
        assert all("SEARCH" in row[3] for row in plan if "runs" in row[3]), plan


def test_a_key_of_the_job_alone_evaluates_nothing_again(store: Store) -> None:
    """An earlier version wrote none, or another."""
    send(store, [fair_step(1)], run="a", environment=environment(0))
    evaluate_pending(store)
    of_run = select(runs.c.job, runs.c.rewind).where(runs.c.id == "a")
    with store.writing() as connection:
        before = connection.execute(of_run).one()
        connection.execute(update(runs).values(job=None))
    send(store, [fair_step(2)], run="a", environment=environment(0))
    with store.reading() as connection:
        assert connection.execute(of_run).one() == before
    assert before.job and not before.rewind


def test_of_many_attempts_those_around_the_run_are_shown(store: Store) -> None:
    for n in range(50):
        sent: dict[str, Any] = {"environment": environment(n), "started": START + n}
        send(store, [fair_step(1)], run=f"r{n}", **sent)
    shown = {run: attempts(store, run, MOST_SHOWN) for run in ("r0", "r30", "r49")}
    numbers = {run: (some[0].number, some[-1].number) for run, some in shown.items()}
    assert numbers == {"r0": (1, 20), "r30": (21, 40), "r49": (31, 50)}
    assert {each.total for some in shown.values() for each in some} == {50}
    assert len(attempts(store, "r30")) == 50
    incident = build_incident(store, "r30")
    assert "Attempts of this job: 21 to 40 of 50" in markdown(incident)
    page = html(incident)
    assert "sent a record, 21 to 40 of 50. Each" in page and "r19" not in page
    with store.reading() as connection:
        assert has_later(connection, "r30") and not has_later(connection, "r49")


def test_each_run_shows_the_attempt_before_with_its_last_step_and_verdict(service: Service) -> None:
    sent: dict[str, Any] = {"name": "elastic", "project": "p"}
    for restarts, (run, one_step, steps) in enumerate((("a", step, 4), ("b", fair_step, 8))):
        started = time.time() - 60 + restarts
        records = [one_step(n) for n in range(1, steps + 1)]
        service.post(
            batch(run, records, started=started, environment=environment(restarts), **sent)
        )
    assert eventually(HANGS, lambda: service.get("/runs/b").json()["steps"] == 8)
    assert eventually(HANGS, lambda: service.get("/runs/a").json()["steps"] == 4)
    listed = service.get("/runs/b/attempts").json()["attempts"]
    assert [(each["number"], each["run"], each["steps"]) for each in listed] == [
        (1, "a", 4),
        (2, "b", 8),
    ]
    assert (listed[0]["verdict"], listed[1]["restarts"]) == ("broken", "torchrun restart 1")
    page = http.get(f"{service.url}/runs/b", headers={"Accept": "text/html"}).text
    line = page.partition('id="attempt">')[2].partition("</p>")[0]
    assert "Attempt 2 of 2</a> of one job." in line
    assert '<a href="/runs/a"><code>a</code></a>, last step 4, Broken.' in line
    assert "The next attempt" not in line
    report = http.get(f"{service.url}/runs/b/postmortem?format=json").json()
    assert report["attempts"] == listed
    markdown = http.get(f"{service.url}/runs/b/postmortem?format=md").text
    assert "## Attempts of this job" in markdown


def test_a_run_without_a_launcher_shows_no_attempts(service: Service) -> None:
    service.post(batch("alone", [fair_step(1)]))
    assert service.get("/runs/alone/attempts").json() == {"attempts": []}
    page = http.get(f"{service.url}/runs/alone").text
    assert 'id="attempt"' not in page and 'id="attempts"' not in page
    assert service.get("/runs/nobody/attempts").status_code == 404
