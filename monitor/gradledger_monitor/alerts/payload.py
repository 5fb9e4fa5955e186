"""What a message says, as plain values in the form that receivers depend on (pure).

Every message fits into ``MOST_BYTES`` of JSON: details go first, then texts are cut, then findings
are left out and counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal
from urllib.parse import quote

from gradledger_monitor.alerts.planner import Item
from gradledger_monitor.model.findings import SEVERITIES, Finding

MOST_BYTES = 20_000
# of a text, of a list among the evidence, of a message's findings: the first that fits is taken
FITS = ((4_000, 32, 50), (1_500, 8, 20), (600, 0, 12), (300, 0, 6), (150, 0, 1))
MOST_NAME = 256

CERTAINTY = {
    "S": "exact: counted and calculated, at {steps} of the steps",
    "T": "statistical: drawn from the course of the run, shown by {steps} of the steps",
}

Document = dict[str, Any]
Link = Callable[[str], str | None]  # where a person may acknowledge a rule's finding


@dataclass(frozen=True)
class RunSummary:
    """The run that a message is about."""

    id: str
    name: str
    project: str
    verdict: str
    steps: int
    ranks: int


@dataclass(frozen=True)
class PageUrls:
    """Where to read more: the service as a person reaches it, and the links of this message."""

    base: str
    acknowledge: Link

    def run(self, run: str) -> str:
        """The page of a run."""
        return f"{self.base}/runs/{quote(run, safe='')}"

    def rule(self, rule: str) -> str:
        """The page of a rule."""
        return f"{self.base}/rules/{quote(rule, safe='')}"


def alert(
    run: RunSummary, items: tuple[Item, ...], kinds: Mapping[str, str], places: PageUrls, now: float
) -> Document:
    """One message about one run. ``kinds`` says of each rule whether it is exact."""
    for texts, lists, most in FITS:
        findings = [_finding(item, kinds, places, texts, lists) for item in items[:most]]
        made = _document("gradledger.alert", now, _about(run, places), findings)
        made["data"]["omitted"] = len(items) - len(findings)
        if len(encoded(made)) <= MOST_BYTES:
            break
    return made


def test(base: str, now: float) -> Document:
    """A message that is sent to see whether it arrives."""
    made = _document("gradledger.test", now, None, [])
    made["data"]["message"] = f"A test of alerts from gradledger at {base}: it arrived."
    return made


def encoded(document: Document) -> bytes:
    """A document as it is sent."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def worst(document: Document) -> Literal["info", "warning", "error", "ok"]:
    """The highest severity among what lasts; ``ok`` where everything is resolved."""
    lasting = {f["severity"] for f in document["data"]["findings"] if f["reason"] != "resolved"}
    return max((s for s in SEVERITIES if s in lasting), key=SEVERITIES.index, default="ok")


def _document(
    kind: str, now: float, run: Document | None, findings: list[Document]
) -> dict[str, Any]:
    at = datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="milliseconds")
    return {
        "type": kind,
        "timestamp": at.replace("+00:00", "Z"),
        "data": {"run": run, "findings": findings, "omitted": 0},
    }


def _about(run: RunSummary, places: PageUrls) -> Document:
    return {
        "id": run.id,
        "name": cut(run.name, MOST_NAME),
        "project": cut(run.project, MOST_NAME),
        "verdict": run.verdict,
        "steps": run.steps,
        "ranks": run.ranks,
        "url": places.run(run.id),
    }


def _finding(
    item: Item, kinds: Mapping[str, str], places: PageUrls, texts: int, lists: int
) -> Document:
    found = item.finding
    return {
        "reason": item.reason,
        "rule": found.rule,
        "optimizer": found.optimizer,
        "severity": found.severity,
        "title": cut(found.title, texts),
        "summary": cut(found.summary, texts),
        "fix": cut(found.fix, texts),
        "certainty": _certainty(found, kinds),
        "since_step": found.since_step or found.first_step,
        "first_step": found.first_step,
        "last_step": found.last_step,
        "steps": found.steps,
        "evidence": _figures(found.evidence, lists),
        "rule_url": places.rule(found.rule),
        "acknowledge_url": None if item.reason == "resolved" else places.acknowledge(found.rule),
    }


def _certainty(found: Finding, kinds: Mapping[str, str]) -> str:
    return CERTAINTY[kinds.get(found.rule, "T")].format(steps=found.steps)


def _figures(evidence: dict[str, Any], lists: int) -> Document:
    """The evidence in small: numbers and words, short lists, nothing nested deeper."""
    said = {name: _figure(value, lists) for name, value in list(evidence.items())[:64]}
    return {cut(str(name), 64): value for name, value in said.items() if value is not None}


def _figure(value: Any, lists: int) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return cut(value, 256)
    if isinstance(value, (list, tuple)) and 0 < len(value) <= lists:
        flat = [_figure(one, 0) for one in value]
        return None if None in flat else flat
    return None


def cut(text: str, most: int) -> str:
    """A text of at most so many characters; what was cut is shown by an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"
