"""Comments on the findings of a rule, and their assignee: over HTTP, on the page, and stored."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import httpx2
import pytest

from helpers import http
from helpers.batches import batch, eventually, fair_step, step
from helpers.patience import HANGS
from helpers.service import Service, running_service

RULE = "reduction.token_weights_unequal"
PATH = f"/findings/{RULE}/comments"
START = 1_700_000_000.0


@pytest.fixture
def two_runs(database: str) -> Iterator[Service]:
    """A healthy run, and a later one with a finding."""
    with running_service(database) as running:
        for run, one_step, started in (("right", fair_step, START), ("wrong", step, START + 60)):
            environment = {"commit": f"{run}-0123456789"}
            steps = [one_step(n) for n in range(1, 4)]
            running.post(
                batch(run, steps, name=f"a {run} run", started=started, environment=environment)
            )
        assert eventually(HANGS, lambda: RULE in inbox(running))
        yield running


def inbox(service: Service, **filters: str) -> str:
    address = f"{service.url}/findings?{urlencode(filters)}"
    return http.get(address, headers={"Accept": "text/html"}).text


def comment(service: Service, **body: object) -> httpx2.Response:
    return http.post(f"{service.url}/api/v1{PATH}", json=body)


def test_comments_are_in_order_and_the_last_assignment_holds(service: Service) -> None:
    assert service.get(PATH).json() == {"rule": RULE, "assignee": "", "comments": []}
    assert comment(service, text="seen since Monday", by="Ada").status_code == 201
    assert comment(service, assignee="Ben", by="Ada").status_code == 201
    answer = comment(service, text="the collator drops the count").json()
    assert answer == service.get(PATH).json()
    assert answer["assignee"] == "Ben"
    assert [(c["text"], c["by"], c["assignee"]) for c in answer["comments"]] == [
        ("seen since Monday", "Ada", None),
        ("", "Ada", "Ben"),
        ("the collator drops the count", None, None),
    ]
    assert comment(service, assignee="").json()["assignee"] == ""


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        (PATH, {}, 422, "write a text, or name an assignee"),
        (PATH, {"text": " "}, 422, "write a text, or name an assignee"),
        (PATH, {"text": "x" * 4001}, 422, "at most 4000 characters"),
        (PATH, {"text": "a\0b"}, 422, "body.text"),
        ("/findings/loop.nonsense/comments", {"text": "x"}, 404, "no rule loop.nonsense"),
    ],
)
def test_a_bad_comment_is_refused_with_its_field(
    service: Service, path: str, body: dict[str, str], status: int, reason: str
) -> None:
    answer = http.post(f"{service.url}/api/v1{path}", json=body)
    assert answer.status_code == status
    assert reason in answer.text


def test_the_form_of_the_page_comments_and_assigns(two_runs: Service) -> None:
    headers = {"Origin": two_runs.url}

    def send(**form: str) -> int:
        return http.post(f"{two_runs.url}{PATH}", data=form, headers=headers).status_code

    assert send(text="<b>who</b> looks at this?", assignee="", by="Ada") == 303
    assert send(text="", assignee="Ben", by="Ada") == 303
    page = inbox(two_runs)
    assert "&lt;b&gt;who&lt;/b&gt; looks at this?" in page
    assert "<dt>Assigned to</dt> <dd>Ben</dd>" in page and "assigned it to Ben" in page
    assert RULE in inbox(two_runs, assignee="Ben") and RULE not in inbox(two_runs, assignee="Ada")
    assert 'name="assigned" value="Ben"' in page
    assert send(text="", assigned="Ben", assignee="Ben", by="Ada") == 422  # nothing that is new
    assert send(text="done", assigned="Ben", assignee="Ben", by="Ben") == 303
    assert inbox(two_runs).count("assigned it to") == 1
    # a form that was loaded before that assignment changes nothing about it
    assert send(text="me too", assigned="", assignee="", by="Carl") == 303
    assert "<dt>Assigned to</dt> <dd>Ben</dd>" in inbox(two_runs)
    assert send(text="", assigned="Ben", assignee="", by="Ben") == 303
    assert "<dt>Assigned to</dt>" not in inbox(two_runs)


def test_the_inbox_states_since_which_commit(two_runs: Service) -> None:
    page = " ".join(inbox(two_runs).split())
    assert 'since <a href="/runs/wrong">a wrong run</a> (commit <code>wrong-0123</code>)' in page
    before = '<a href="/runs/right">a right run</a> (commit <code>right-0123</code>)'
    assert f"{before}, the run before it in that project, did not show it" in page
