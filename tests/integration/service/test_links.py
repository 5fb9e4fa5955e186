"""Every link of every page leads somewhere, and every rule has a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from urllib.parse import urldefrag

import httpx2
import pytest

from gradledger_monitor.rules.docs import rules_by_id
from helpers import http
from helpers.batches import batch, eventually, fair_step, step
from helpers.patience import HANGS
from helpers.service import Service, running_service

BROWSER = {"Accept": "text/html,application/xhtml+xml"}
RULE = "reduction.token_weights_unequal"
_CODE_WITHOUT_LINK = re.compile(r'(?<!">)<code>([a-z_]+\.[a-z_]+)</code>')
_LINK = re.compile(r'<a [^>]*?href="([^"]+)"')


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service with a wrong run of two names, and a right one."""
    with running_service(tmp_path_factory.mktemp("links") / "gradledger.db") as running:
        for run in ("first", "second"):
            running.post(batch(run, [step(n) for n in range(1, 4)], name=f"wrong {run}"))
        running.post(batch("right", [fair_step(n) for n in range(1, 4)], name="a right run"))
        assert eventually(HANGS, lambda: _both_shown(running))
        yield running


def get(service: Service, path: str) -> httpx2.Response:
    return http.get(service.url + path, headers=BROWSER)


def text(service: Service, path: str) -> str:
    return get(service, path).text


def _both_shown(service: Service) -> bool:
    inbox = text(service, "/findings")
    return "wrong first" in inbox and "wrong second" in inbox


def test_every_link_of_every_page_leads_to_a_page_and_a_place_on_it(service: Service) -> None:
    pages: dict[str, str] = {}
    waiting = {("/", "", "")}
    followed = set()
    while waiting:
        path, anchor, source = waiting.pop()
        followed.add((path, anchor))
        if path not in pages:
            response = get(service, path)
            assert response.status_code in (200, 303), f"{path}, linked from {source}"
            pages[path] = response.text
        # the script of a run's page reads this one: the range of its charts
        if anchor and not anchor.startswith("steps="):
            assert f'id="{anchor}"' in pages[path], f"{path}#{anchor}, linked from {source}"
        for link in map(unescape, _LINK.findall(pages[path])):
            target, anchor_of_link = urldefrag(link.removeprefix(service.url))
            target = target or path
            if target.startswith("/") and (target, anchor_of_link) not in followed:
                waiting.add((target, anchor_of_link, path))
    assert {f"/rules/{rule}" for rule in rules_by_id()} <= pages.keys()
    assert "/runs/first/postmortem" in pages
    for path, page in pages.items():
        for rule in _CODE_WITHOUT_LINK.findall(page):
            assert rule not in rules_by_id() or path == f"/rules/{rule}", (path, rule)
    assert {"/findings", "/rules", "/alerts", "/docs", "/settings", "/runs/first"} <= pages.keys()


def test_the_page_of_a_rule_has_its_thresholds_its_incidents_and_the_runs_that_show_it(
    service: Service,
) -> None:
    page = text(service, f"/rules/{RULE}")
    assert 'href="https://github.com/huggingface/transformers/issues/34191"' in page
    assert "<code>num_items_in_batch</code>" in page and "``" not in page
    assert "misallocation from which it is an error" in page
    assert f'href="/runs/first#finding-{RULE}"' in page
    assert "a right run" not in page


def test_lists_of_a_manual_are_lists_of_its_page(service: Service) -> None:
    page = text(service, "/rules/loss.diverging")
    assert "<ul><li>Each of the last 5 losses" in page and "</li><li>For 100 steps" in page
    assert "- Each of" not in page


def test_a_run_whose_clock_was_not_set_has_no_age(tmp_path: Path) -> None:
    with running_service(tmp_path / "gradledger.db") as service:
        service.post(batch("r", [step(1)], name="without times", started=12_345.6))
        assert eventually(HANGS, lambda: "without times" in text(service, "/findings"))
        for path in ("/", "/findings", "/runs/r"):
            assert "at an unknown time" in text(service, path), path
            assert "1970" not in text(service, path) and 'data-ago="12345.6"' not in text(
                service, path
            )


def test_a_finding_is_acknowledged_in_every_run_and_that_is_undone(service: Service) -> None:
    form = {"note": "a known run", "by": "Ada", "hours": ""}
    address = f"{service.url}/findings/{RULE}/acknowledgement"
    headers = {"Origin": service.url}
    assert http.post(address, data=form, headers=headers).status_code == 303
    inbox = text(service, "/findings")
    assert inbox.count(", acknowledged<") == 2
    assert "a known run" in text(service, "/runs/second")
    assert f'id="rule-{RULE}"' in text(service, "/findings?state=acknowledged")
    assert f'id="rule-{RULE}"' not in text(service, "/findings?state=open")
    assert http.post(address, data={"do": "undo"}, headers=headers).status_code == 303
    assert ", acknowledged<" not in text(service, "/findings")


def test_the_inbox_is_searched(service: Service) -> None:
    assert "wrong first" in text(service, "/findings?search=FIRST")
    assert "wrong second" not in text(service, "/findings?search=FIRST")
    assert "No finding matches" in text(service, "/findings?search=100%25")


def test_the_inbox_has_what_each_finding_says_and_is_filtered_by_severity(service: Service) -> None:
    """The sentence of the latest run, whose name stands before it; a filter remains in links."""
    inbox = text(service, "/findings?severity=error&search=wrong")
    assert re.search(r"<strong>wrong (first|second):</strong> In step 3, ", inbox)
    assert 'href="/findings?search=wrong&amp;severity=warning"' in inbox
    assert f'id="rule-{RULE}"' not in text(service, "/findings?severity=info")
    assert "No finding matches these filters" in text(service, "/findings?state=acknowledged")


def test_an_inbox_without_runs_has_the_command_that_starts_one(tmp_path: Path) -> None:
    with running_service(tmp_path / "gradledger.db") as service:
        page = text(service, "/findings")
        assert "No runs yet" in page and "gradledger run" in page


def test_a_person_gets_a_page_where_there_is_none_and_a_program_a_document(
    service: Service,
) -> None:
    page = get(service, "/nothing")
    assert page.status_code == 404
    assert "<h1>Not found</h1>" in page.text
    assert get(service, "/runs/first?optimizer=x").headers["content-type"].startswith("text/html")
    for response in (http.get(f"{service.url}/nothing"), get(service, "/api/v1/nothing")):
        assert response.status_code == 404
        assert response.headers["content-type"] == "application/problem+json"


def test_a_step_names_the_findings_that_it_shows(service: Service) -> None:
    assert "Findings at this step" in text(service, "/runs/first/steps/0/2")
    assert "Findings at this step" not in text(service, "/runs/right/steps/0/2")


def test_a_finding_of_another_optimizer_is_linked_to(tmp_path: Path) -> None:
    """Its element has another id than that of the first optimizer, which has no finding here."""
    records = [replace(step(n), optimizer=1) for n in range(1, 4)]
    with running_service(tmp_path / "gradledger.db") as service:
        service.post(batch("two", records, name="two optimizers", optimizers=["SGD", "Adam"]))
        assert eventually(HANGS, lambda: "two optimizers" in text(service, "/findings"))
        run = text(service, "/runs/two?optimizer=1")
        assert f'id="finding-{RULE}-1"' in run and f'href="#finding-{RULE}-1"' in run
        for path in ("/findings", f"/rules/{RULE}"):
            assert f'href="/runs/two#finding-{RULE}-1"' in text(service, path), path
        assert '<input type="hidden" name="optimizer" value="1">' in run
        form = {"note": "known", "optimizer": "1"}
        address = f"{service.url}/runs/two/findings/{RULE}/acknowledgement"
        response = http.post(address, data=form, headers={"Origin": service.url})
        assert response.headers["location"] == f"/runs/two#finding-{RULE}-1"
        assert f'href="/runs/two#finding-{RULE}-1"' in text(service, "/alerts")


def test_a_filter_of_the_inbox_that_is_too_long_is_named(service: Service) -> None:
    response = get(service, f"/findings?assignee={'x' * 257}")
    assert response.status_code == 422 and "assignee: String should" in response.text
