"""The evaluation of a run as a person reads it in a terminal. Files get no colours."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gradledger_monitor.common.sanitize import printable, sanitize
from gradledger_monitor.model.code.frames import code_frames, frame_text
from gradledger_monitor.model.findings import (
    Acknowledgement,
    EvaluationResult,
    Finding,
    TreeNode,
    fix_title,
)
from gradledger_monitor.reports.objectives import ObjectiveSummary
from gradledger_monitor.rules.objective_verdicts import BALANCED
from gradledger_monitor.rules.overrides import EVALUATED_WITH, OFF
from gradledger_web import formatting, glossary, headline

MOST_COLUMNS = 100
MOST_NUMBERS = 8  # of optimizers
STYLES = {
    "balanced": "bold green",
    "suspect": "bold yellow",
    "broken": "bold red",
    "incomplete": "bold cyan",
    "error": "bold red",
    "warning": "bold yellow",
    "info": "bold cyan",
}
_STATUS_STYLES = {
    "ok": "green",
    "finding": "red",
    "not_applicable": "dim",
    "not_measured": "cyan",
}


def console(stream: TextIO) -> Console:
    """A console for ``stream``, at most ``MOST_COLUMNS`` wide; plain if ``NO_COLOR`` is set."""
    system: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    output = Console(file=stream, color_system=system, highlight=False, markup=False, emoji=False)
    output.width = min(output.width, MOST_COLUMNS) if output.is_terminal else MOST_COLUMNS
    return output


def report(
    name: str,
    steps: int,
    ranks: int,
    evaluation: EvaluationResult,
    absent: headline.Absent = headline.NO_RANKS,
    revision: str = "",
    objectives: Sequence[ObjectiveSummary] = (),
) -> RenderableType:
    """The verdict, the findings with their fixes, several objectives, and the decision tree.

    ``absent`` are the ranks without a record of the last step, with their last one; ``revision``:
    which code was trained.
    """
    evaluation = sanitize(evaluation)  # its texts come from a training process
    return Group(
        Rule(f"gradledger: {printable(name)}", align="left", style="dim"),
        _Indented(_verdict(steps, ranks, evaluation, absent), label=""),
        *([Text(printable(revision), style="dim")] if revision else []),
        *(_finding(*together) for together in _together(evaluation.findings)),
        Text(),
        *_objectives(objectives),
        *(_node(node) for node in evaluation.tree),
        *_overrides(evaluation),
    )


def _verdict(steps: int, ranks: int, evaluation: EvaluationResult, absent: headline.Absent) -> Text:
    meaning = headline.verdict_meaning(evaluation, steps, ranks, absent)
    return Text.assemble((evaluation.verdict.upper(), STYLES[evaluation.verdict]), f": {meaning}")


def _together(findings: Sequence[Finding]) -> Iterator[tuple[Finding, str]]:
    """Each finding, with its optimizers if there are several; one for those that are equal else."""
    several = any(finding.optimizer for finding in findings)
    alike: list[tuple[Finding, list[int]]] = []
    for finding in findings:
        equal = (n for f, n in alike if replace(finding, optimizer=f.optimizer) == f)
        numbers = next(equal, None)
        if numbers is None:
            alike.append((finding, [finding.optimizer]))
        else:
            numbers.append(finding.optimizer)
    for finding, numbers in alike:
        shown = ", ".join(map(str, numbers[:MOST_NUMBERS]))
        shown += ", ..." if len(numbers) > MOST_NUMBERS else ""
        of = f", {'optimizers' if len(numbers) > 1 else 'optimizer'} {shown}"
        yield finding, of if several else ""


def _finding(finding: Finding, of: str) -> RenderableType:
    style = "dim" if finding.inhibited_by else STYLES[finding.severity]
    title = Text.assemble("\n", (finding.severity, style), "  ", (finding.title, "bold"))
    return Group(title, _Indented(Group(*_details(finding, of))), _Unbroken(finding.fix))


@dataclass(frozen=True)
class _Indented:
    """Text, some columns to the right, without spaces at the ends of its lines.

    ``label`` is before the first line.
    """

    text: RenderableType
    label: str = "  "
    style: str = ""  # of the label

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        left = Segment(self.label, console.get_style(self.style))
        narrower = options.update_width(options.max_width - len(self.label))
        for line in console.render_lines(self.text, narrower, pad=False):
            plain = "".join(segment.text for segment in line)
            if plain.strip():
                yield left
                yield from Segment.adjust_line_length(line, cell_len(plain.rstrip()), pad=False)
            yield Segment.line()
            left = Segment(" " * len(self.label))


@dataclass(frozen=True)
class _Unbroken:
    """Code, two columns to the right, in whole lines: ``patch`` rejects a wrapped diff."""

    code: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.code.strip("\n").split("\n"):
            yield Segment(f"  {line}" if line else "")
            yield Segment.line()


def _details(finding: Finding, of: str) -> Iterator[Text]:
    resolved = ", resolved" if finding.lifecycle == "resolved" else ""
    yield Text(f"{finding.rule}, {step_span(finding)}{of}{resolved}", style="dim")
    if finding.inhibited_by:
        yield Text(f"a symptom of {finding.inhibited_by}", style="dim")
    if finding.acknowledged:
        yield Text(_acknowledgement(finding.acknowledged), style="green")
    yield Text(finding.summary)
    facts = [
        fact for fact in glossary.facts(finding.evidence, finding.last_step) if not fact.is_list
    ]
    if facts:
        yield Text(", ".join(f"{fact.label} {fact.text}" for fact in facts), style="dim")
    for frame in code_frames(finding.code):
        yield Text(f"\n{frame_text(frame)}", style="cyan", no_wrap=True, overflow="ellipsis")
    if finding.fix:
        yield Text(f"\n{fix_title(finding.fix)}:", style="bold")


def _acknowledgement(acknowledgement: Acknowledgement) -> str:
    by = f" by {acknowledgement.by}" if acknowledgement.by else ""
    until = ""
    if acknowledgement.until:
        until = f", until {datetime.fromtimestamp(acknowledgement.until):%Y-%m-%d %H:%M}"
    return f"acknowledged{by}{until}: {acknowledgement.note}"


def _objectives(objectives: Sequence[ObjectiveSummary]) -> Iterator[RenderableType]:
    """The losses of a run with several, side by side; a single one if its balance is explained."""
    explained = any(each.status == "ok" and each.text != BALANCED for each in objectives)
    if len(objectives) < 2 and not explained:
        return
    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("Objective", "Per step", "Balance", "Verdict"):
        rows.add_column(name, justify="right" if name == "Balance" else "left", overflow="fold")
    several = len({each.optimizer for each in objectives}) > 1
    for each in objectives:
        name = f"optimizer {each.optimizer}: {each.name}" if several else each.name
        count = formatting.NOT_MEASURED
        if each.unit:
            count = f"{formatting.quantity(each.count)} {each.unit}"
        balance, text = formatting.figure(each.balance), Text(printable(each.text))
        text.stylize(_STATUS_STYLES[each.status])
        rows.add_row(Text(printable(name)), Text(printable(count)), balance, text)
    yield _Indented(rows)
    yield Text()


def _node(node: TreeNode) -> RenderableType:
    status, style = f"  {glossary.STATUSES[node.status]:<15}", _STATUS_STYLES[node.status]
    counts = node.status != "ok" or node.node == "norm"  # the spikes; an ok of others has none
    detail = node.detail if counts else node.past
    reason = f" ({detail})" if detail else ""
    return _Indented(Text.assemble(node.question, (reason, "dim")), status, style)


def _overrides(evaluation: EvaluationResult) -> Iterator[Text]:
    """The rules that a person disabled or gave other thresholds."""
    coverage = evaluation.coverage
    disabled = [rule for rule, text in coverage.items() if text.endswith(OFF)]
    if disabled:
        number = formatting.plural(len(disabled), "rule")
        yield Text(f"\n{number} {OFF}: {', '.join(disabled)}", style="yellow")
    for rule, text in coverage.items():
        if EVALUATED_WITH in text:
            yield Text(f"\n{rule}: {text[text.index(EVALUATED_WITH) :]}", style="yellow")


def step_span(finding: Finding) -> str:
    """The steps of a finding: all of a range, or some of it."""
    if finding.first_step == finding.last_step:
        return f"step {finding.first_step}"
    span = f"steps {finding.first_step} to {finding.last_step}"
    length = finding.last_step - finding.first_step + 1
    return span if finding.steps == length else f"{finding.steps} of {span}"
