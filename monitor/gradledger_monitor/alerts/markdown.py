"""The same message for people: a title and Markdown (pure)."""

from __future__ import annotations

from gradledger_monitor.alerts.payload import Document, cut, worst
from gradledger_monitor.common.sanitize import printable, sanitize

MOST_TITLE = 160
WORDS = {
    "new": "",
    "worse": "Worse than told before. ",
    "regressed": "It is back after it was resolved. ",
    "repeated": "It still lasts. ",
    "again": "It still lasts, and nobody says any more that it is known. ",
    "resolved": "Resolved. ",
}
# Messengers understand Markdown, HTML and names to call, each in its own way.
_ESCAPED = {
    **{sign: f"\\{sign}" for sign in "\\`*_[]"},
    "<": "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}",
    ">": "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}",
    "@": "@\N{ZERO WIDTH SPACE}",
}
MARKS = {"error": "❌", "warning": "⚠️", "info": "\N{INFORMATION SOURCE}", "ok": "✅"}


def title(document: Document) -> str:
    """One line."""
    data = document["data"]
    if data["run"] is None:
        return "gradledger: test"
    findings = data["findings"]
    rest = len(findings) - 1 + data["omitted"]
    more = f" (and {rest} more)" if rest else ""
    done = "resolved: " if findings[0]["reason"] == "resolved" else ""
    mark, name = MARKS[worst(document)], data["run"]["name"]
    return plain(cut(f"{mark} {name}: {done}{findings[0]['title']}{more}", MOST_TITLE))


def body(document: Document) -> str:
    """All of it, in Markdown."""
    data = document["data"]
    if data["run"] is None:
        return str(data["message"])
    run = data["run"]
    head = f"Run {escaped(run['name'])} of {escaped(run['project'])} is {run['verdict']} "
    head += f"after {run['steps']:,} steps: {run['url']}"
    parts = [head, *(_finding(found) for found in data["findings"])]
    if data["omitted"]:
        parts.append(f"{data['omitted']} more findings are on the page of the run.")
    return "\n\n".join(parts)


def _finding(found: Document) -> str:
    said = f"**{escaped(found['title'])}** ({found['severity']}, `{found['rule']}`)"
    shows = WORDS[found["reason"]] + escaped(found["summary"])
    if found["reason"] == "resolved":
        return f"{said}\n{shows}"
    since = f"Since step {found['since_step']:,}, last shown at {found['last_step']:,}."
    sure = f"How sure: {found['certainty']}."
    fence = "```"
    lines = [said, shows, f"{since} {sure}"]
    if found["fix"]:
        fix = sanitize(found["fix"]).replace(fence, "")
        lines.append(f"{fence}\n{fix}\n{fence}")
    lines.append(f"About this rule: {found['rule_url']}")
    if found["acknowledge_url"]:
        lines.append(f"Acknowledge or snooze: {found['acknowledge_url']}")
    return "\n".join(lines)


def plain(text: str) -> str:
    """A text in one line, without anything that is not for reading."""
    return printable(" ".join(text.split()))


def escaped(text: str) -> str:
    """What a run says of itself, which may be anything, without meaning in Markdown or HTML."""
    return "".join(_ESCAPED.get(sign, sign) for sign in plain(text))
