"""What messages say: everything a person needs, within bounds, and nothing a run can abuse."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from gradledger_monitor.alerts import chart_png, markdown, payload
from gradledger_monitor.alerts.backoff import DELAYS, next_attempt
from gradledger_monitor.alerts.channels import alertmanager
from gradledger_monitor.alerts.configuration import channel_of, shown
from gradledger_monitor.alerts.http_post import of_status
from gradledger_monitor.alerts.payload import MOST_BYTES, PageUrls, RunSummary
from gradledger_monitor.alerts.planner import Item, Reason
from gradledger_monitor.config.redaction import redacted as shown_setting
from gradledger_monitor.model.findings import Finding

PLACES = PageUrls("https://monitor.example", lambda rule: f"https://monitor.example/a/{rule}")
KINDS = {"scaler.collapse": "T", "loop.double_step": "S"}


def item(rule: str = "loop.double_step", reason: Reason = "new", **said: Any) -> Item:
    """One finding in a message."""
    told: dict[str, Any] = {
        "optimizer": 0, "severity": "error", "first_step": 3, "last_step": 9, "steps": 7,
        "title": "Two steps on one gradient", "summary": "The step is 2 times as large.",
        "fix": "optimizer.step()", "evidence": {"factor": 2.0}, "since_step": 3,
    }  # fmt: skip
    return Item(reason, Finding(rule=rule, **{**told, **said}))


def message(*items: Item, name: str = "a run") -> payload.Document:
    """A message about a run."""
    about = RunSummary("r/1", name, "p", "broken", 9, 2)
    return payload.alert(about, items or (item(),), KINDS, PLACES, 1_000.5)


def test_a_message_says_what_how_sure_since_when_how_much_and_what_to_do() -> None:
    said = message(item(), item("scaler.collapse", severity="warning"))
    assert said["timestamp"] == "1970-01-01T00:16:40.500Z"
    assert said["data"]["run"]["url"] == "https://monitor.example/runs/r%2F1"
    first, second = said["data"]["findings"]
    assert first["certainty"].startswith("exact") and second["certainty"].startswith("statistical")
    assert (first["since_step"], first["last_step"], first["steps"]) == (3, 9, 7)
    assert first["evidence"] == {"factor": 2.0} and first["fix"] == "optimizer.step()"
    assert first["rule_url"] == "https://monitor.example/rules/loop.double_step"
    assert first["acknowledge_url"] == "https://monitor.example/a/loop.double_step"
    text = markdown.body(said)
    for part in ("exact", "Since step 3", "optimizer.step()", "runs/r%2F1", "/a/loop.double_step"):
        assert part in text


def test_every_message_fits_whatever_was_found() -> None:
    long: dict[str, Any] = {
        "summary": "long \N{SNOWMAN}" * 9_000,
        "fix": "x" * 9_000,
        "title": "t" * 9_000,
    }
    evidence = {f"name {n}": [float(n)] * 50 for n in range(500)} | {"deep": {"a": [1]}}
    said = message(*(item(evidence=evidence, **long) for _ in range(200)), name="n" * 9_000)
    assert len(payload.encoded(said)) <= MOST_BYTES
    assert said["data"]["findings"] and said["data"]["omitted"] > 0
    assert len(said["data"]["findings"]) + said["data"]["omitted"] == 200
    assert len(markdown.body(said).encode()) <= MOST_BYTES
    assert len(markdown.title(said)) <= 2 * markdown.MOST_TITLE


def test_numbers_that_json_cannot_say_are_words() -> None:
    said = message(item(evidence={"norm": float("nan"), "scale": float("inf"), "none": None}))
    assert said["data"]["findings"][0]["evidence"] == {"norm": "nan", "scale": "inf"}
    json.loads(payload.encoded(said), parse_constant=pytest.fail)


def test_a_run_cannot_call_people_or_write_markup() -> None:
    said = message(item(fix="```\n@channel"), name="@everyone <b>[x](http://evil)\x1b[0m\n# head")
    text, title = markdown.body(said), markdown.title(said)
    assert "@everyone" not in text and "<b>" not in text and "[x](" not in text
    assert "\x1b" not in text + title and "\n# head" not in text and "\n" not in title
    assert text.count("```") == 2


def test_alertmanager_gets_labels_that_stay_the_same_and_an_end() -> None:
    (firing,) = alertmanager.alerts(message(), 3_600)
    (over,) = alertmanager.alerts(message(item(reason="resolved")), 3_600)
    assert firing["labels"] == over["labels"]
    assert firing["labels"]["alertname"] == "loop.double_step"
    assert firing["startsAt"] == over["endsAt"] == "1970-01-01T00:16:40.500Z"
    assert firing["endsAt"] == "1970-01-01T01:46:40.500Z"
    assert "acknowledge_url" in firing["annotations"]
    assert "acknowledge_url" not in over["annotations"]
    assert all(isinstance(v, str) for v in firing["annotations"].values())


# ---------------------------------------------------------------- pictures


def series(values: list[float | None]) -> dict[str, list[Any]]:
    """Columns as the store gives them."""
    empty: list[float | None] = [None] * len(values)
    names = ("balance", "norm", "scale", "loss_reported", "misallocation")
    return {"step": [*range(1, len(values) + 1)], **dict.fromkeys(names, empty), "norm": values}


def test_the_picture_is_small_and_shows_the_figure_of_the_rule() -> None:
    values = [1.0 + n % 7 for n in range(300)]
    png = chart_png.drawn("norm.spike", 200, series([*values, 9e5, None, float("nan")]))
    assert png is not None and png.startswith(b"\x89PNG") and len(png) < MOST_BYTES
    assert struct.unpack(">II", png[16:24]) == (chart_png.WIDTH, chart_png.HEIGHT)
    assert png != chart_png.drawn("norm.spike", 100, series([*values, 9e5, None, float("nan")]))


def test_without_two_values_there_is_no_picture() -> None:
    assert chart_png.drawn("norm.spike", 1, series([1.0])) is None
    assert chart_png.drawn("reduction.world_size", 1, series([None, None])) is None
    assert chart_png.drawn("norm.spike", 1, series([2.0, 2.0])) is not None


# ---------------------------------------------------------------- attempts, and what they tell


def test_attempts_come_after_5_seconds_to_24_hours_give_or_take_a_fifth() -> None:
    assert (DELAYS[0], DELAYS[-1]) == (5, 86_400)
    for failures, delay in enumerate(DELAYS, 1):
        assert next_attempt(DELAYS, failures, 0, 0.0) == delay * 0.8
        assert next_attempt(DELAYS, failures, 0, 1.0) == pytest.approx(delay * 1.2)
    assert next_attempt(DELAYS, len(DELAYS) + 1, 0, 0.5) is None


@pytest.mark.parametrize(
    ("status", "retry_after", "fate", "wait"),
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
def test_a_status_says_what_became_of_a_message(
    status: int, retry_after: str, fate: str, wait: float | None
) -> None:
    outcome = of_status(status, retry_after)
    assert (outcome.outcome, outcome.status, outcome.retry_after) == (fate, status, wait)


def test_secrets_do_not_show_where_settings_are_printed() -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    url = "https://hooks.example.org/hidden/path?token=hidden"
    channel = channel_of({"name": "c", "url": url, "secrets": [secret], "bearer": "hidden"})
    said = shown_setting("alert_channels", [channel]) + repr(channel) + str(channel)
    assert "hooks.example.org" in said and "hidden" not in said and "MfKQ" not in said
    assert shown("slack://hidden/hidden") == "slack://…"
