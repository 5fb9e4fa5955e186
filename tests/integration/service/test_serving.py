"""The process itself: where it listens, what it tells live, how it ends."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from gradledger_monitor.api.schemas import FindingList, RunList, StepDocument, VerdictDocument
from gradledger_monitor.store.admin import maintenance
from gradledger_monitor.store.database import Store
from helpers import http
from helpers.batches import batch, eventually, step
from helpers.command import gradledger
from helpers.patience import HANGS
from helpers.service import Service, running_service


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The data of ``judged`` events in a stream."""
    for line in lines:
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_pages_get_an_event_after_every_evaluation(service: Service) -> None:
    service.post(batch("live", [step(1)]))
    assert eventually(HANGS, lambda: bool(service.get("/runs/live").json()["steps"] == 1))
    url = f"{service.url}/api/v1/runs/live/events"
    with http.stream("GET", url) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        arrived = events(response.iter_lines())
        first = next(arrived)
        assert (first["optimizer"], first["step"]) == (0, 1)
        service.post(batch("live", [step(2), step(3)]))
        # the evaluation of the first step may be announced after the page has read it
        last = next(event for event in arrived if event["step"] == 3)
        assert last == {"optimizer": 0, "step": 3, "verdict": "broken", "findings": 1}
    assert service.get("/runs/live/series?optimizer=0&after=1").json()["step"] == [2, 3]


def test_curves_tell_times_of_this_century_to_a_hundredth_of_a_second(service: Service) -> None:
    began = 1_801_396_800.25
    steps = [dataclasses.replace(step(n), time=began + n / 4, norm=n / 3) for n in range(1, 5)]
    service.post(batch("timed", steps))
    assert eventually(HANGS, lambda: bool(service.get("/runs/timed").json()["steps"] == 4))
    series = service.get("/runs/timed/series?figures=norm").json()
    assert series["time"] == [began + n / 4 for n in range(1, 5)]
    assert series["norm"] == [0.3333333, 0.6666667, 1, 1.333333]


def test_curves_are_those_of_the_last_evaluation(tmp_path: Path) -> None:
    """Also where a record came late, and the judge began anew."""
    with running_service(tmp_path / "again.db", rank_timeout="0") as service:

        def drawn(steps: list[int], norms: list[float]) -> bool:
            found = service.get("/runs/again/series?figures=norm").json()
            return bool(found.get("step") == steps and found.get("norm") == norms)

        def sent(number: int, norm: float) -> None:
            service.post(batch("again", [dataclasses.replace(step(number), norm=norm)]))

        sent(1, 1.0)
        assert eventually(HANGS, lambda: drawn([1], [1.0]))
        assert drawn([1], [1.0])
        sent(3, 3.0)
        assert eventually(HANGS, lambda: drawn([1, 3], [1.0, 3.0]))
        sent(2, 2.0)
        assert eventually(HANGS, lambda: drawn([1, 2, 3], [1.0, 2.0, 3.0]))


def test_on_sigterm_it_ends_cleanly_with_an_open_page(tmp_path: Path) -> None:
    with running_service(tmp_path / "gradledger.db") as service:
        service.post(batch("open", [step(1)]))
        opened = threading.Event()

        def look() -> None:
            url = f"{service.url}/api/v1/runs/open/events"
            with http.stream("GET", url) as response:
                for _ in response.iter_lines():
                    opened.set()

        page = threading.Thread(target=look)
        page.start()
        assert opened.wait(HANGS)
        assert service.stop() == 0
        page.join(HANGS)
        assert not page.is_alive()
    output = "".join(service.output)
    assert "Traceback" not in output and "graceful shutdown exceeded" not in output


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_by_default_it_listens_only_on_this_machine(tmp_path: Path, host: str) -> None:
    done = gradledger(
        "serve", "--db", f"sqlite:///{tmp_path / 'a.db'}", "--port", 0, "--host", host
    )
    assert done.returncode == 2 and "--insecure" in done.stderr
    assert not (tmp_path / "a.db").exists()


def test_a_port_in_use_is_named_and_ends_the_process(service: Service, tmp_path: Path) -> None:
    done = gradledger("serve", "--db", f"sqlite:///{tmp_path / 'a.db'}", "--port", service.port)
    assert done.returncode == 2
    assert f"127.0.0.1:{service.port} is in use" in done.stderr


def test_the_openapi_document_describes_every_route(service: Service) -> None:
    document = service.get("/openapi.json").json()
    assert set(document["paths"]) >= {
        "/api/v1/records",
        "/api/v1/runs",
        "/api/v1/runs/{run}",
        "/api/v1/runs/{run}/series",
        "/api/v1/runs/{run}/evaluations",
        "/api/v1/runs/{run}/collectives/{optimizer}",
        "/api/v1/runs/{run}/layers/{optimizer}",
        "/api/v1/runs/{run}/findings",
        "/api/v1/runs/{run}/verdict",
        "/api/v1/runs/{run}/events",
        "/api/v1/runs/{run}/steps/{optimizer}/{step}",
        "/healthz",
        "/readyz",
    }
    assert "ProblemDocument" in document["components"]["schemas"]


def test_one_step_can_be_looked_at_whole(service: Service) -> None:
    service.post(batch("detail", [step(1)]))
    found = service.get("/runs/detail/steps/0/1").json()
    assert found["complete"] and found["figures"]["misallocation"] == pytest.approx(0.25)
    assert [entry["tokens"] for entry in found["ledger"]["entries"]] == [10, 30]
    assert found["records"]["0"]["micro_batches"][1]["terms"][0]["tokens"] == 30


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ({"GRADLEDGER_PORT": "many"}, "GRADLEDGER_PORT=many: "),
        ({"GRADLEDGER_DB": "nonsense"}, "URL"),
        ({"GRADLEDGER_DB": "mysql://host/name"}, "sqlite"),
        ({"GRADLEDGER_DB": "sqlite:////dev/null/a.db"}, "/dev/null"),
        ({"GRADLEDGER_DB": "postgresql+asyncpg://host/name"}, "gradledger[monitor,postgres]"),
    ],
)
def test_an_invalid_setting_is_named_and_ends_the_process(
    variable: dict[str, str], text: str
) -> None:
    done = gradledger("serve", environment={**os.environ, **variable, "COLUMNS": "200"})
    assert done.returncode == 2 and text in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["serve"], ["db", "upgrade"], ["token", "list"]], ids=" ".join)
def test_an_unreachable_database_is_reported_in_one_line(command: list[str]) -> None:
    nowhere = "postgresql+psycopg://me:hidden@127.0.0.1:1/none"
    done = gradledger(*command, environment={**os.environ, "GRADLEDGER_DB": nowhere})
    assert done.returncode == 2 and "hidden" not in done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("gradledger: the database (GRADLEDGER_DB) cannot be reached: ")
    assert "refused" in line


@pytest.mark.parametrize("command", [["serve"], ["db", "upgrade"]], ids=" ".join)
def test_tables_of_a_newer_version_are_not_changed_and_reported(
    command: list[str], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with closing(Store(url)) as store:
        store.migrate()
        with store.writing() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        done = gradledger(*command, environment={**os.environ, "GRADLEDGER_DB": url})
        assert done.returncode == 2 and "too new: its tables, at 9999" in done.stderr
        assert len(done.stderr.splitlines()) == 1 and maintenance.revision(store) == "9999"


def test_responses_match_the_openapi_document(service: Service) -> None:
    service.post(batch("described", [step(1)]))
    assert eventually(HANGS, lambda: bool(service.get("/runs/described").json()["steps"] == 1))
    RunList.model_validate(service.get("/runs").json())
    FindingList.model_validate(service.get("/runs/described/findings").json())
    StepDocument.model_validate(service.get("/runs/described/steps/0/1").json())
    verdict = service.get("/runs/described/verdict").json()
    assert VerdictDocument.model_validate(verdict).model_dump() == verdict
