"""The content of a message, as JSON values in the form that receivers depend on (pure).

Every message fits into ``MAX_BYTES`` of JSON: lists of evidence are dropped first, then texts are
cut, then findings are omitted and counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from gradledger_monitor.alerts.planner import AlertItem
from gradledger_monitor.model.code.locations import LABELS, CodeLocation
from gradledger_monitor.model.code.revision import NOT_KNOWN, Revision
from gradledger_monitor.model.findings import SEVERITIES, Finding, is_generic

MAX_BYTES = 20_000
MAX_NAME = 256
MAX_EVIDENCE = 64  # entries

CERTAINTY = {"S": "exact", "T": "statistical"}  # by the kind of a rule

Document = dict[str, Any]
AcknowledgeUrl = Callable[[str], str | None]  # for a rule


class Detail(NamedTuple):
    """How much a message contains."""

    text: int  # characters of a text
    list_: int  # entries of a list in the evidence
    findings: int


# The first that fits is used.
DETAILS = (
    Detail(4_000, 32, 50),
    Detail(1_500, 8, 20),
    Detail(600, 0, 12),
    Detail(300, 0, 6),
    Detail(150, 0, 1),
)


@dataclass(frozen=True)
class RunSummary:
    """The run that a message is about."""

    id: str
    name: str
    project: str
    verdict: str
    steps: int
    ranks: int
    revision: Revision = NOT_KNOWN


@dataclass(frozen=True)
class PageUrls:
    """URLs of pages for people, and the acknowledgement links of this message."""

    base: str
    acknowledge: AcknowledgeUrl

    def run(self, run: str) -> str:
        """The page of a run."""
        return f"{self.base}/runs/{quote(run, safe='')}"

    def rule(self, rule: str) -> str:
        """The page of a rule."""
        return f"{self.base}/rules/{quote(rule, safe='')}"


def alert_document(
    run: RunSummary,
    items: tuple[AlertItem, ...],
    kinds: Mapping[str, str],
    urls: PageUrls,
    now: float,
) -> Document:
    """A message about one run. ``kinds`` are the kinds of the rules: "S" or "T"."""
    for detail in DETAILS:
        findings = [_finding(item, kinds, urls, detail) for item in items[: detail.findings]]
        document = _document("gradledger.alert", now, _run(run, urls), findings)
        document["data"]["omitted"] = len(items) - len(findings)
        if len(encoded(document)) <= MAX_BYTES:
            break
    return document


def test_document(base: str, now: float) -> Document:
    """A message that tests whether a channel works."""
    document = _document("gradledger.test", now, None, [])
    document["data"]["message"] = f"Test message from gradledger at {base}. Delivery works."
    return document


def encoded(document: Document) -> bytes:
    """A document as it is sent."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def worst_severity(document: Document) -> Literal["info", "warning", "error", "ok"]:
    """The highest severity among ongoing findings; ``ok`` if all are resolved."""
    ongoing = {f["severity"] for f in document["data"]["findings"] if f["reason"] != "resolved"}
    return max((s for s in SEVERITIES if s in ongoing), key=SEVERITIES.index, default="ok")


def _document(
    type_: str, now: float, run: Document | None, findings: list[Document]
) -> dict[str, Any]:
    timestamp = datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="milliseconds")
    return {
        "type": type_,
        "timestamp": timestamp.replace("+00:00", "Z"),
        "data": {"run": run, "findings": findings, "omitted": 0},
    }


def _run(run: RunSummary, urls: PageUrls) -> Document:
    return {
        "id": run.id,
        "name": cut(run.name, MAX_NAME),
        "project": cut(run.project, MAX_NAME),
        "verdict": run.verdict,
        "steps": run.steps,
        "ranks": run.ranks,
        "commit": run.revision.commit,
        "dirty": None if run.revision.dirty is None else cut(run.revision.dirty, MAX_NAME),
        "url": urls.run(run.id),
    }


def _finding(item: AlertItem, kinds: Mapping[str, str], urls: PageUrls, detail: Detail) -> Document:
    finding = item.finding
    return {
        "reason": item.reason,
        "rule": finding.rule,
        "optimizer": finding.optimizer,
        "severity": finding.severity,
        "title": cut(finding.title, detail.text),
        "summary": cut(finding.summary, detail.text),
        "fix": cut(finding.fix, detail.text),
        "fix_is_generic": is_generic(finding.fix),
        "code": [_code(location) for location in finding.code],
        "certainty": _certainty(finding, kinds),
        "since_step": finding.since_step or finding.first_step,
        "first_step": finding.first_step,
        "last_step": finding.last_step,
        "steps": finding.steps,
        "evidence": _evidence(finding.evidence, detail.list_),
        "rule_url": urls.rule(finding.rule),
        "acknowledge_url": None if item.reason == "resolved" else urls.acknowledge(finding.rule),
    }


def _code(location: CodeLocation) -> Document:
    """Where the script's code is, without its text: a message may leave the organisation."""
    return {
        "role": location.role,
        "label": LABELS[location.role],
        "file": cut(location.file, MAX_NAME),
        "line": location.line,
        "function": cut(location.function, 64),
    }


def _certainty(finding: Finding, kinds: Mapping[str, str]) -> str:
    return f"{CERTAINTY[kinds.get(finding.rule, 'T')]} ({plural(finding.steps, 'step')})"


def _evidence(evidence: dict[str, Any], max_list: int) -> Document:
    """The evidence without nested values: numbers, words and short lists."""
    values = {name: _flat(value, max_list) for name, value in list(evidence.items())[:MAX_EVIDENCE]}
    return {cut(str(name), 64): value for name, value in values.items() if value is not None}


def _flat(value: Any, max_list: int) -> Any:
    """A value that is not nested; None if it is dropped."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return cut(value, 256)
    if isinstance(value, (list, tuple)) and 0 < len(value) <= max_list:
        flat = [_flat(entry, 0) for entry in value]
        return None if None in flat else flat
    return None


def cut(text: str, length: int) -> str:
    """A text of at most ``length`` characters; an ellipsis marks a cut."""
    return text if len(text) <= length else text[: length - 1] + "…"


def plural(count: int, noun: str) -> str:
    """A count and its noun: ``1 step``, ``1,200 steps``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
