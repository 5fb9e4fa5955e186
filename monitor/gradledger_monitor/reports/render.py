"""A post-mortem as HTML that needs no network, Markdown, or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import gradledger
from gradledger_monitor.common.json_floats import json_safe
from gradledger_monitor.common.sanitize import sanitize
from gradledger_monitor.model.code.frames import code_frames, frame_text
from gradledger_monitor.model.code.revision import revision_of
from gradledger_monitor.model.findings import Finding, fix_title
from gradledger_monitor.model.step_facts import IMPORTED_FROM
from gradledger_monitor.reports.incident import Cost, Incident
from gradledger_monitor.reports.objectives import ObjectiveSummary
from gradledger_monitor.reports.terminal import step_span
from gradledger_monitor.reports.verdict_json import verdict_json
from gradledger_monitor.store.runs.attempts import Attempt
from gradledger_monitor.store.steps.curves import Curves
from gradledger_web import (
    assets,
    charts,
    formatting,
    glossary,
    headline,
    layer_map,
    progress,
    rank_table,
)
from gradledger_web.chart_svg import Curve, Frame, Plot, plot
from gradledger_web.rendering import render


def html(incident: Incident, service: str = "") -> str:
    """One file without scripts that fetches nothing; it links to the service at this URL."""
    return render(
        "postmortem.html",
        incident=incident,
        service=service,
        run=incident.run,
        summary=_summary(incident),
        tree=incident.evaluation.tree,
        objectives=incident.objectives,
        ranks=_ranks(incident),
        layers=layer_map.layer_maps(incident.layers),
        why_no_layers=layer_map.why_empty(incident.evaluation.coverage),
        lost=progress.is_lost(incident.run, incident.created),
        charts=list(_charts(incident)),
        cost=cost_text(incident.cost) if incident.cost else "",
        styles=assets.inline("app.css"),
        version=gradledger.__version__,
    )


def _summary(incident: Incident) -> headline.Summary:
    run = incident.run
    return headline.summarize(incident.evaluation, run.steps, run.world_size, incident.absent)


def _ranks(incident: Incident) -> rank_table.Ranks | None:
    at = incident.topology
    return rank_table.table(at.topology, at.step, at.never_sent) if at else None


def as_json(incident: Incident) -> str:
    """The verdict in the format of ``check --json``, with the content of the report."""
    run, onset = incident.run, incident.onset
    revision = revision_of(run.environment)
    evaluated = (incident.evaluation, incident.objectives, incident.topology)
    document = verdict_json(run.id, run.steps, run.world_size, *evaluated, revision)
    document |= {
        "name": run.name,
        "created": incident.created,
        "changed": incident.changed,
        "first_bad_step": onset.first_step if onset else None,
        "last_good_checkpoint": _as_dict(incident.last_good),
        "restart": incident.restart,
        "cost_since": _as_dict(incident.cost),
        "losses": [asdict(losses) for losses in incident.losses],
        "events": [asdict(event) for event in incident.events],
        "omitted_events": incident.omitted_events,
        "not_measured": dict(incident.unmeasured),
        "around": incident.around,
        "attempts": [asdict(attempt) for attempt in incident.attempts],
        "environment": run.environment,
        "config": run.config,
    }
    return json.dumps(json_safe(document), indent=2, default=str) + "\n"


def _as_dict(value: Any) -> Any:
    if value is None:
        return None
    names = getattr(value, "__struct_fields__", None)
    return {name: getattr(value, name) for name in names} if names else asdict(value)


# ---------------------------------------------------------------- charts


def _charts(incident: Incident) -> Iterator[tuple[str, str, list[Plot]]]:
    """Title, hint, and plots: of the whole run, and of the steps around the onset."""
    extents = [incident.whole, incident.around]
    if incident.around["step"] == incident.whole["step"]:  # a short run
        del extents[1]
    for chart in charts.charts_of(imported=IMPORTED_FROM in incident.run.environment):
        if chart.id == "evaluations":
            plots = [_evaluation_plot(chart, incident)]
        else:
            plots = [_plot(chart, incident, columns) for columns in extents]
        shown = [plot for plot in plots if plot is not None]
        if shown:
            yield chart.title, chart.hint, shown


def _plot(chart: charts.Chart, incident: Incident, columns: Curves) -> Plot | None:
    curves = [
        Curve(
            label=series.label,
            colour=series.colour,
            values=columns[series.key],
            low=columns.get(f"{series.key}_low"),
            high=columns.get(f"{series.key}_high"),
            dash=series.dash,
        )
        for series in chart.series
        if series.key in columns and not series.right_axis
    ]
    return plot(_frame(chart, incident), columns["step"], curves)


def _frame(chart: charts.Chart, incident: Incident) -> Frame:
    marked = [
        (f.first_step, f.last_step)
        for f in incident.causes
        if f.optimizer == incident.optimizer and chart.id in charts.charts_of_rule(f.rule)
    ]
    onset = incident.onset.first_step if incident.onset else None
    figure = chart.series[0].key if chart.series else ""
    return Frame(chart.title, chart.yaxis.get("type") == "log", marked, onset, figure)


def _evaluation_plot(chart: charts.Chart, incident: Incident) -> Plot | None:
    steps = sorted({step for metric in incident.evaluations.values() for step in metric["step"]})
    curves = []
    metrics = zip(incident.evaluations.items(), charts.PALETTE, strict=False)
    for (name, columns), colour in metrics:
        values = dict(zip(columns["step"], columns["mean"], strict=True))
        curves.append(Curve(name, colour, [values.get(step) for step in steps]))
    return plot(_frame(chart, incident), steps, curves)


# ---------------------------------------------------------------- Markdown


def markdown(incident: Incident) -> str:
    """The same without charts, for a ticket or a wiki."""
    incident = sanitize(incident)
    return "\n".join(_markdown(incident)).rstrip() + "\n"


def _markdown(incident: Incident) -> Iterator[str]:
    run = incident.run
    summary = _summary(incident)
    yield f"# Post-mortem: {_escaped(run.name)}"
    yield ""
    yield f"**{run.verdict.upper()}**: {_escaped(f'{summary.sentence} {summary.detail}')}"
    yield ""
    if incident.changed:
        yield f"**What changed**: {_escaped(incident.changed)}"
        yield ""
    size = f"{formatting.plural(run.steps, 'step')}, {formatting.plural(run.world_size, 'rank')}"
    yield f"Run `{run.id}`, {size}, {formatting.plural(run.tokens, 'token')}; started"
    yield f"{formatting.clock(run.started)}, last seen {formatting.clock(run.last_seen)}."
    yield from _onset(incident)
    yield from _objectives(incident)
    title = _attempts_title(incident.attempts)
    yield from _table(title, _ATTEMPT, list(map(_attempt, incident.attempts)))
    yield from _rank_lines(incident)
    yield from _table("Decision tree", ("question", "answer", "reason"), _tree(incident))
    for title, findings in (("Findings", incident.causes), ("Symptoms", incident.symptoms)):
        if findings:
            yield from ("", f"## {title}")
            for finding in findings:
                yield from _finding(finding)
    yield from _table(_timeline_title(incident), ("step", "time", "kind", "event"), _rows(incident))
    yield from _table("Not measured", ("rule", "reason"), incident.unmeasured)
    yield from _table("Environment", ("key", "value"), list(run.environment.items()))
    yield from _table("Config", ("key", "value"), list(run.config.items()))


def _onset(incident: Incident) -> Iterator[str]:
    onset = incident.onset
    if onset is not None:
        yield from ("", f"- first bad step: **{onset.first_step}** (`{onset.rule}`)")
    yield f"- {_escaped(incident.restart)}"
    if incident.cost is not None:
        yield f"- cost since then: {cost_text(incident.cost)}"
    for losses in incident.losses:
        reported = formatting.figure(losses.reported)
        weighted = formatting.figure(losses.token_weighted)
        yield f"- loss at step {losses.step}: {reported} reported, {weighted} token-weighted"


def _objectives(incident: Incident) -> Iterator[str]:
    """The objectives of a run with several."""
    if len(incident.objectives) < 2:
        return
    head = ("objective", "verdict", "per step", "balance B", "misallocation d", "coefficient")
    yield from _table("Objectives", head, [_objective(o) for o in incident.objectives])


def _objective(objective: ObjectiveSummary) -> tuple[str, ...]:
    count = f"{formatting.quantity(objective.count)} {objective.unit}" if objective.unit else "-"
    return (
        objective.name,
        objective.text,
        count,
        formatting.figure(objective.balance),
        formatting.percent(objective.misallocation),
        formatting.figure(objective.coefficient),
    )


def _rank_lines(incident: Incident) -> Iterator[str]:
    ranks = _ranks(incident)
    if ranks is None:
        return
    yield from ("", f"## Ranks at step {ranks.step}", "", *map(_escaped, ranks.sentences))
    rows = [(row.rank, row.absent or row.role, formatting.count(row.tokens)) for row in ranks.rows]
    yield from ("", _row(("rank", "role", "tokens")), _row(["---"] * 3))
    yield from (_row([_escaped(str(cell)) for cell in row]) for row in rows)


_ATTEMPT = ("attempt", "run", "launcher", "ranks", "last step", "verdict")


def _attempts_title(attempts: list[Attempt]) -> str:
    title = "Attempts of this job"
    if not attempts or len(attempts) == attempts[0].total:
        return title
    return f"{title}: {attempts[0].number} to {attempts[-1].number} of {attempts[0].total}"


def _attempt(attempt: Attempt) -> tuple[Any, ...]:
    run = (attempt.number, attempt.run, attempt.restarts)
    return (*run, attempt.world_size, attempt.steps, attempt.verdict)


def cost_text(cost: Cost) -> str:
    """The cost since the onset in one line."""
    steps, tokens = formatting.plural(cost.steps, "step"), formatting.plural(cost.tokens, "token")
    gpu = (
        "GPU-hours unknown"
        if cost.gpu_hours is None
        else f"{formatting.figure(cost.gpu_hours, 3)} GPU-hours"
    )
    return f"{steps}, {tokens}, {formatting.duration(cost.seconds)}, {gpu} ({cost.note})"


def _tree(incident: Incident) -> list[tuple[str, str, str]]:
    return [(n.question, glossary.ANSWERS[n.status], n.detail) for n in incident.evaluation.tree]


def _timeline_title(incident: Incident) -> str:
    omitted = f" ({incident.omitted_events} events further from the first bad step not shown)"
    return f"Timeline{omitted if incident.omitted_events else ''}"


def _rows(incident: Incident) -> list[tuple[int, str, str, str]]:
    return [
        (event.step, formatting.clock(event.time) if event.time else "", event.kind, event.text)
        for event in incident.events
    ]


def _finding(finding: Finding) -> Iterator[str]:
    yield from ("", f"### {_escaped(finding.title)}", "")
    cause = f", a symptom of `{finding.inhibited_by}`" if finding.inhibited_by else ""
    yield f"`{finding.rule}`, {finding.severity}, {finding.lifecycle}, {step_span(finding)}{cause}"
    yield from ("", _escaped(finding.summary), "")
    for fact in glossary.facts(finding.evidence, finding.last_step):
        yield f"- {_escaped(fact.label)}: {_escaped(fact.text)}"
    for frame in code_frames(finding.code):
        text = frame_text(frame).replace("````", "")
        yield from ("", "````text", sanitize(text), "````")
    if finding.fix:
        fence = "`" * 4
        yield from ("", f"{fix_title(finding.fix)}:")
        yield from ("", f"{fence}python", finding.fix.strip("\n"), fence)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    if not rows:
        return
    yield from ("", f"## {title}", "", _row(head), _row(["---"] * len(head)))
    yield from (_row([_escaped(str(cell)) for cell in row]) for row in rows)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Text without meaning in Markdown and HTML, on one line."""
    escaped = "".join(f"\\{c}" if c in "\\`*_{}[]<>#|" else c for c in text)
    return " ".join(escaped.split())


FORMATS: dict[str, Callable[[Incident], str]] = {"html": html, "md": markdown, "json": as_json}
