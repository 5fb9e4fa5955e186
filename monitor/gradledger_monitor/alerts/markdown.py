"""A message for people: a title and a body in Markdown (pure)."""

from __future__ import annotations

from gradledger_monitor.alerts.payload import Document, cut, plural, worst_severity
from gradledger_monitor.common.sanitize import printable
from gradledger_monitor.model.code.revision import Revision

MAX_TITLE = 160
MAX_LINES = 5
MAX_SUMMARY = 400  # characters
MAX_OTHERS = 5  # rules of further findings
REASONS = {
    "new": "",
    "worse": "The severity increased. ",
    "regressed": "Recurred after it was resolved. ",
    "repeated": "Still firing. ",
    "again": "Still firing; the acknowledgement expired or was withdrawn. ",
    "resolved": "Resolved. ",
}
# Messengers interpret Markdown, HTML and mentions, each in a different way.
_ESCAPED = {
    **{sign: f"\\{sign}" for sign in "\\`*_[]"},
    "<": "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}",
    ">": "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}",
    "@": "@\N{ZERO WIDTH SPACE}",
}
MARKS = {"error": "❌", "warning": "⚠️", "info": "\N{INFORMATION SOURCE}", "ok": "✅"}


def title(document: Document) -> str:
    """The title, in one line."""
    data = document["data"]
    if data["run"] is None:
        return "gradledger: test"
    findings = data["findings"]
    rest = len(findings) - 1 + data["omitted"]
    more = f" (and {rest} more)" if rest else ""
    prefix = "resolved: " if findings[0]["reason"] == "resolved" else ""
    mark, name = MARKS[worst_severity(document)], data["run"]["name"]
    return plain(cut(f"{mark} {name}: {prefix}{findings[0]['title']}{more}", MAX_TITLE))


def body(document: Document) -> str:
    """What a chat shows below the title: at most ``MAX_LINES`` lines of Markdown.

    The first finding, the rules of the others, and the pages that have everything else.
    """
    data = document["data"]
    if data["run"] is None:
        return str(data["message"])
    run, (first, *others) = data["run"], data["findings"]
    lines = [REASONS[first["reason"]] + escaped(cut(first["summary"], MAX_SUMMARY)), _facts(first)]
    if others or data["omitted"]:
        lines.append(_others(others, data["omitted"]))
    state = f"{run['verdict']} after {plural(run['steps'], 'step')}"
    revision = Revision(run["commit"], run["dirty"]).text
    of = f", {escaped(revision)}" if revision else ""
    lines.append(
        f"Run {escaped(run['name'])} in {escaped(run['project'])}, {state}{of}: {run['url']}"
    )
    if first["acknowledge_url"]:
        lines.append(f"Acknowledge or snooze: {first['acknowledge_url']}")
    return "\n".join(lines)


def _facts(finding: Document) -> str:
    steps = f"since step {finding['since_step']:,}, last seen at step {finding['last_step']:,}"
    code = f", {_location(finding['code'][0])}" if finding["code"] else ""
    return f"{finding['severity']}, `{finding['rule']}`, {finding['certainty']}, {steps}{code}"


def _others(findings: list[Document], omitted: int) -> str:
    rules = [f"`{finding['rule']}`" for finding in findings[:MAX_OTHERS]]
    hidden = len(findings) + omitted - len(rules)
    more = f" and {hidden} more" if hidden else ""
    return f"Also: {', '.join(rules)}{more}"


def _location(location: Document) -> str:
    position = f"{plain(location['file'])}:{location['line']}".replace("`", "'")
    return f"`{position}` ({location['label']})"


def plain(text: str) -> str:
    """A text in one line, with control characters escaped."""
    return printable(" ".join(text.split()))


def escaped(text: str) -> str:
    """An untrusted text of a run, without meaning in Markdown or HTML and without mentions."""
    return "".join(_ESCAPED.get(sign, sign) for sign in plain(text))
