"""A judgement as a person reads it in a terminal. Colours only where there is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from gradledger_monitor.common.sanitize import printable, sanitize
from gradledger_monitor.model.findings import Acknowledgement, EvaluationResult, Finding, TreeNode
from gradledger_monitor.rules.overrides import EVALUATED_WITH, OFF

WIDEST = 100
STYLES = {
    "balanced": "bold green",
    "suspect": "bold yellow",
    "broken": "bold red",
    "incomplete": "bold cyan",
    "error": "bold red",
    "warning": "bold yellow",
    "info": "bold cyan",
}
MARKS = {
    "ok": ("ok", "green"),
    "finding": ("finding", "red"),
    "not_applicable": ("does not apply", "dim"),
    "not_measured": ("not measured", "cyan"),
}
MEANINGS = {
    "balanced": "every check that applies was made, and found nothing",
    "suspect": "something deserves a look",
    "broken": "training does not do what it says",
    "incomplete": "a check that applies could not be made",
}


def console(stream: TextIO) -> Console:
    """A console for ``stream``, no wider than is good to read."""
    made = Console(file=stream, highlight=False, markup=False, emoji=False)
    made.width = min(made.width, WIDEST) if made.is_terminal else WIDEST
    return made


def report(name: str, steps: int, ranks: int, evaluation: EvaluationResult) -> RenderableType:
    """The verdict, the findings with their fixes, and the questions behind them."""
    evaluation = sanitize(evaluation)  # of words that come from a training process
    return Group(
        Rule(f"gradledger: {printable(name)}", align="left", style="dim"),
        _headline(steps, ranks, evaluation),
        *(_finding(finding) for finding in evaluation.findings),
        Text(),
        *(_node(node) for node in evaluation.tree),
        *_chosen(evaluation),
    )


def _headline(steps: int, ranks: int, evaluation: EvaluationResult) -> Text:
    said = f" - {MEANINGS[evaluation.verdict]} ({_many(steps, 'step')}, {_many(ranks, 'rank')})"
    return Text.assemble((evaluation.verdict.upper(), STYLES[evaluation.verdict]), said)


def _finding(finding: Finding) -> RenderableType:
    style = "dim" if finding.inhibited_by else STYLES[finding.severity]
    head = Text.assemble("\n", (finding.severity, style), "  ", (finding.title, "bold"))
    return Group(head, Padding(Group(*_details(finding)), (0, 0, 0, 2)))


def _details(finding: Finding) -> Iterator[Text]:
    yield Text(f"{finding.rule}, {_when(finding)}", style="dim")
    if finding.inhibited_by:
        yield Text(f"a symptom of {finding.inhibited_by}", style="dim")
    if finding.acknowledged:
        yield Text(_acknowledged(finding.acknowledged), style="green")
    yield Text(finding.summary)
    figures = [f"{key} {_figure(value)}" for key, value in finding.evidence.items() if _flat(value)]
    if figures:
        yield Text(", ".join(figures), style="dim")
    if finding.fix:
        yield Text("\nfix", style="bold")
        yield Text(finding.fix.strip("\n"))


def _acknowledged(said: Acknowledgement) -> str:
    by = f" by {said.by}" if said.by else ""
    until = f", until {datetime.fromtimestamp(said.until):%Y-%m-%d %H:%M}" if said.until else ""
    return f"acknowledged{by}{until}: {said.note}"


def _node(node: TreeNode) -> Text:
    mark, style = MARKS[node.status]
    reason = f" ({node.reason})" if node.reason and node.status != "ok" else ""
    return Text.assemble((f"  {mark:<15}", style), node.question, (reason, "dim"))


def _chosen(evaluation: EvaluationResult) -> Iterator[Text]:
    said = evaluation.coverage
    off = [rule for rule, text in said.items() if text.endswith(OFF)]
    if off:
        yield Text(f"\n{_many(len(off), 'rule')} {OFF}: {', '.join(off)}", style="yellow")
    for rule, text in said.items():
        if EVALUATED_WITH in text:
            yield Text(f"\n{rule}: {text[text.index(EVALUATED_WITH) :]}", style="yellow")


def _when(finding: Finding) -> str:
    if finding.first_step == finding.last_step:
        return f"step {finding.first_step}"
    span = f"steps {finding.first_step} to {finding.last_step}"
    all_of_them = finding.last_step - finding.first_step + 1
    return span if finding.steps == all_of_them else f"{finding.steps} of {span}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _flat(value: Any) -> bool:
    return isinstance(value, (int, float, str))


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
