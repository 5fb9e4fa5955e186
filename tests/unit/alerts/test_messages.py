"""Messages: all that a person needs, within a size limit, and without markup from a run."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from gradledger_monitor.alerts import chart_png, markdown, payload
from gradledger_monitor.alerts.backoff import DELAYS, next_attempt
from gradledger_monitor.alerts.channels import alertmanager
from gradledger_monitor.alerts.channels.http_post import result_of_status
from gradledger_monitor.alerts.configuration import parse_channel, redacted_url
from gradledger_monitor.alerts.payload import MAX_BYTES, PageUrls, RunSummary
from gradledger_monitor.alerts.planner import AlertItem, Reason
from gradledger_monitor.config.redaction import redacted
from gradledger_monitor.model.code.revision import Revision, revision_of
from gradledger_monitor.model.findings import Finding

URLS = PageUrls("https://monitor.example", lambda rule: f"https://monitor.example/a/{rule}")
KINDS = {"scaler.collapse": "T", "loop.double_step": "S"}


def item(rule: str = "loop.double_step", reason: Reason = "new", **fields: Any) -> AlertItem:
    """A finding in a message."""
    defaults: dict[str, Any] = {
        "optimizer": 0, "severity": "error", "first_step": 3, "last_step": 9, "steps": 7,
        "title": "Two steps on one gradient", "summary": "The step is 2 times as large.",
        "fix": "optimizer.step()", "evidence": {"factor": 2.0}, "since_step": 3,
    }  # fmt: skip
    return AlertItem(reason, Finding(rule=rule, **{**defaults, **fields}))


def message(*items: AlertItem, name: str = "a run") -> payload.Document:
    """A message about a run."""
    run = RunSummary(id="r/1", name=name, project="p", verdict="broken", steps=9, ranks=2)
    return payload.alert_document(run, items or (item(),), KINDS, URLS, 1_000.5)


def test_a_message_names_the_commit_and_what_differs_from_it() -> None:
    revision = Revision("1a2b3c4d5e6f", "train.py")
    run = RunSummary("r", "a run", "p", "broken", 9, 2, revision)
    document = payload.alert_document(run, (item(),), KINDS, URLS, 1_000.5)
    assert (document["data"]["run"]["commit"], document["data"]["run"]["dirty"]) == (
        "1a2b3c4d5e6f",
        "train.py",
    )
    assert "commit 1a2b3c4d5e with uncommitted changes: train.py" in markdown.body(document)
    assert "commit" not in markdown.body(message())
    assert revision_of({"commit": "1a2b", "dirty": "no"}).text == "commit 1a2b"
    assert revision_of({}).text == ""


def test_a_message_has_certainty_steps_evidence_fix_and_links() -> None:
    document = message(item(), item("scaler.collapse", severity="warning"))
    assert document["timestamp"] == "1970-01-01T00:16:40.500Z"
    assert document["data"]["run"]["url"] == "https://monitor.example/runs/r%2F1"
    first, second = document["data"]["findings"]
    assert first["certainty"].startswith("exact") and second["certainty"].startswith("statistical")
    assert (first["since_step"], first["last_step"], first["steps"]) == (3, 9, 7)
    assert first["evidence"] == {"factor": 2.0} and first["fix"] == "optimizer.step()"
    assert first["rule_url"] == "https://monitor.example/rules/loop.double_step"
    assert first["acknowledge_url"] == "https://monitor.example/a/loop.double_step"
    text = markdown.body(document)
    for part in (
        "exact (7 steps)",
        "since step 3",
        "`scaler.collapse`",
        "runs/r%2F1",
        "/a/loop.double_step",
    ):
        assert part in text


def test_every_message_fits_into_the_size_limit() -> None:
    long: dict[str, Any] = {
        "summary": "long \N{SNOWMAN}" * 9_000,
        "fix": "x" * 9_000,
        "title": "t" * 9_000,
    }
    evidence = {f"name {n}": [float(n)] * 50 for n in range(500)} | {"deep": {"a": [1]}}
    document = message(*(item(evidence=evidence, **long) for _ in range(200)), name="n" * 9_000)
    assert len(payload.encoded(document)) <= MAX_BYTES
    assert document["data"]["findings"] and document["data"]["omitted"] > 0
    assert len(document["data"]["findings"]) + document["data"]["omitted"] == 200
    assert len(markdown.body(document).encode()) <= MAX_BYTES
    assert len(markdown.title(document)) <= 2 * markdown.MAX_TITLE


def test_non_finite_numbers_are_strings() -> None:
    document = message(item(evidence={"norm": float("nan"), "scale": float("inf"), "none": None}))
    assert document["data"]["findings"][0]["evidence"] == {"norm": "nan", "scale": "inf"}
    json.loads(payload.encoded(document), parse_constant=pytest.fail)


def test_names_and_fixes_cannot_mention_people_or_add_markup() -> None:
    document = message(
        item(fix="```\n@channel"), name="@everyone <b>[x](http://evil)\x1b[0m\n# head"
    )
    text, title = markdown.body(document), markdown.title(document)
    assert "@everyone" not in text and "<b>" not in text and "[x](" not in text
    assert "\x1b" not in text + title and "\n# head" not in text and "\n" not in title
    assert text.count("\n") < markdown.MAX_LINES and "@channel" not in text


def test_a_chat_message_has_at_most_five_lines() -> None:
    document = message(*(item() for _ in range(9)))
    lines = markdown.body(document).splitlines()
    assert len(lines) == markdown.MAX_LINES and all(lines)
    assert "loop.double_step" in lines[1] and "and 3 more" in lines[2]
    assert document["data"]["run"]["url"] in lines[3]
    assert document["data"]["findings"][0]["acknowledge_url"] in lines[4]


def test_alertmanager_gets_stable_labels_and_an_end_time() -> None:
    (firing,) = alertmanager.alerts(message(), 3_600)
    (resolved,) = alertmanager.alerts(message(item(reason="resolved")), 3_600)
    assert firing["labels"] == resolved["labels"]
    assert firing["labels"]["alertname"] == "loop.double_step"
    assert firing["startsAt"] == resolved["endsAt"] == "1970-01-01T00:16:40.500Z"
    assert firing["endsAt"] == "1970-01-01T01:46:40.500Z"
    assert "acknowledge_url" in firing["annotations"]
    assert "acknowledge_url" not in resolved["annotations"]
    assert all(isinstance(v, str) for v in firing["annotations"].values())


# ---------------------------------------------------------------- charts


def series(values: list[float | None]) -> dict[str, list[Any]]:
    """Columns as the store gives them."""
    empty: list[float | None] = [None] * len(values)
    names = ("balance", "norm", "scale", "loss_reported", "misallocation")
    return {"step": [*range(1, len(values) + 1)], **dict.fromkeys(names, empty), "norm": values}


def test_the_chart_is_small_and_marks_the_first_step() -> None:
    values = [1.0 + n % 7 for n in range(300)]
    png = chart_png.draw("norm.spike", 200, series([*values, 9e5, None, float("nan")]))
    assert png is not None and png.startswith(b"\x89PNG") and len(png) < MAX_BYTES
    assert struct.unpack(">II", png[16:24]) == (chart_png.WIDTH, chart_png.HEIGHT)
    assert png != chart_png.draw("norm.spike", 100, series([*values, 9e5, None, float("nan")]))


def test_without_two_values_there_is_no_chart() -> None:
    assert chart_png.draw("norm.spike", 1, series([1.0])) is None
    assert chart_png.draw("reduction.world_size", 1, series([None, None])) is None
    assert chart_png.draw("norm.spike", 1, series([2.0, 2.0])) is not None


# ---------------------------------------------------------------- retries, results, secrets


def test_retries_follow_after_5_seconds_to_24_hours_with_20_percent_jitter() -> None:
    assert (DELAYS[0], DELAYS[-1]) == (5, 86_400)
    for failures, delay in enumerate(DELAYS, 1):
        assert next_attempt(DELAYS, failures, 0, 0.0) == delay * 0.8
        assert next_attempt(DELAYS, failures, 0, 1.0) == pytest.approx(delay * 1.2)
    assert next_attempt(DELAYS, len(DELAYS) + 1, 0, 0.5) is None


@pytest.mark.parametrize(
    ("status", "retry_after", "outcome", "wait"),
    [
        (200, "", "delivered", None),
        (204, "", "delivered", None),
        (301, "", "failed", None),
        (404, "9", "failed", None),
        (410, "", "gone", None),
        (429, "7", "failed", 7.0),
        (503, "Thu, 01 Jan 1970 00:00:00 GMT", "failed", 0.0),
        (503, "soon", "failed", None),
    ],
)
def test_an_http_status_determines_the_result(
    status: int, retry_after: str, outcome: str, wait: float | None
) -> None:
    result = result_of_status(status, retry_after)
    assert (result.outcome, result.status, result.retry_after) == (outcome, status, wait)


def test_secrets_are_redacted_where_settings_are_printed() -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    url = "https://hooks.example.org/hidden/path?token=hidden"
    channel = parse_channel({"name": "c", "url": url, "secrets": [secret], "bearer": "hidden"})
    text = redacted("alert_channels", [channel]) + repr(channel) + str(channel)
    assert "hooks.example.org" in text and "hidden" not in text and "MfKQ" not in text
    assert redacted_url("slack://hidden/hidden") == "slack://…"
