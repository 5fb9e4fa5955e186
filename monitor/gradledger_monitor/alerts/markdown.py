"""A message for people: a title and a body in Markdown (pure)."""

from __future__ import annotations

from gradledger_monitor.alerts.payload import Document, cut, plural, worst_severity
from gradledger_monitor.common.sanitize import printable, sanitize

MAX_TITLE = 160
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
    """The whole message, in Markdown."""
    data = document["data"]
    if data["run"] is None:
        return str(data["message"])
    run = data["run"]
    head = f"Run {escaped(run['name'])} in project {escaped(run['project'])} is {run['verdict']} "
    head += f"after {plural(run['steps'], 'step')}: {run['url']}"
    parts = [head, *(_finding(finding) for finding in data["findings"])]
    if data["omitted"]:
        parts.append(f"Not shown: {plural(data['omitted'], 'finding')}. See the run page.")
    return "\n\n".join(parts)


def _finding(finding: Document) -> str:
    head = f"**{escaped(finding['title'])}** ({finding['severity']}, `{finding['rule']}`)"
    summary = REASONS[finding["reason"]] + escaped(finding["summary"])
    if finding["reason"] == "resolved":
        return f"{head}\n{summary}"
    steps = f"Since step {finding['since_step']:,}, last seen at step {finding['last_step']:,}."
    fence = "```"
    lines = [head, summary, f"{steps} Certainty: {finding['certainty']}."]
    if finding["code"]:
        lines.append(f"Code: {', '.join(map(_location, finding['code']))}.")
    if finding["fix"]:
        fix = sanitize(finding["fix"]).replace(fence, "")
        lines.append(f"{fence}\n{fix}\n{fence}")
    lines.append(f"About this rule: {finding['rule_url']}")
    if finding["acknowledge_url"]:
        lines.append(f"Acknowledge or snooze: {finding['acknowledge_url']}")
    return "\n".join(lines)


def _location(location: Document) -> str:
    position = f"{plain(location['file'])}:{location['line']}".replace("`", "'")
    return f"`{position}` ({location['label']})"


def plain(text: str) -> str:
    """A text in one line, with control characters escaped."""
    return printable(" ".join(text.split()))


def escaped(text: str) -> str:
    """An untrusted text of a run, without meaning in Markdown or HTML and without mentions."""
    return "".join(_ESCAPED.get(sign, sign) for sign in plain(text))
