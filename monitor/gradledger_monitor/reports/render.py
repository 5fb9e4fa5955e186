"""A post-mortem as a file: HTML that needs no network, Markdown, or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import gradledger
from gradledger_monitor.common.json_floats import json_safe
from gradledger_monitor.common.sanitize import sanitize
from gradledger_monitor.model.findings import Finding
from gradledger_monitor.reports.incident import Incident
from gradledger_monitor.reports.verdict_json import verdict_json
from gradledger_monitor.store.steps.curves import Curves
from gradledger_web import assets, charts, formatting, headline
from gradledger_web.chart_svg import Curve, Frame, Plot, plot
from gradledger_web.rendering import render


def html(incident: Incident) -> str:
    """One file that a browser opens anywhere: no script, nothing fetched."""
    return render(
        "postmortem.html",
        incident=incident,
        run=incident.run,
        summary=headline.summarize(incident.evaluation, incident.run.steps),
        tree=incident.evaluation.tree,
        pairs=list(_pictures(incident)),
        cost=cost_text(incident) if incident.cost else "",
        styles=assets.inline("app.css"),
        version=gradledger.__version__,
    )


def as_json(incident: Incident) -> str:
    """For other tools: the verdict as ``check --json`` has it, and what the report adds."""
    run, onset = incident.run, incident.onset
    told = verdict_json(run.id, run.steps, run.world_size, incident.evaluation)
    told |= {
        "name": run.name,
        "made": incident.made,
        "first_bad_step": onset.first_step if onset else None,
        "last_good_checkpoint": _plain(incident.last_good),
        "restart": incident.restart,
        "cost_since": _plain(incident.cost),
        "losses": [asdict(one) for one in incident.losses],
        "events": [asdict(event) for event in incident.events],
        "events_left_out": incident.left_out,
        "not_measured": dict(incident.unmeasured),
        "around": incident.around,
        "environment": run.environment,
        "config": run.config,
    }
    return json.dumps(json_safe(told), indent=2, default=str) + "\n"


def _plain(value: Any) -> Any:
    if value is None:
        return None
    names = getattr(value, "__struct_fields__", None)
    return {name: getattr(value, name) for name in names} if names else asdict(value)


# ---------------------------------------------------------------- charts


def _pictures(incident: Incident) -> Iterator[tuple[str, str, list[Plot]]]:
    """Title, hint, and the chart over the whole run beside that around the onset."""
    for chart in charts.RUN_CHARTS:
        if chart.id == "evaluations":
            plots = [_evaluations(incident)]
        else:
            plots = [_plot(chart, incident, at) for at in (incident.whole, incident.around)]
        shown = [each for each in plots if each is not None]
        if shown:
            yield chart.title, chart.hint, shown


def _plot(chart: charts.Chart, incident: Incident, seen: Curves) -> Plot | None:
    curves = [
        Curve(
            s.label,
            s.colour,
            seen[s.key],
            seen.get(f"{s.key}_low"),
            seen.get(f"{s.key}_high"),
            s.dash,
        )
        for s in chart.series
        if s.key in seen and not s.right
    ]
    return plot(_frame(chart, incident, chart.yaxis.get("type") == "log"), seen["step"], curves)


def _frame(chart: charts.Chart, incident: Incident, log: bool) -> Frame:
    marked = [
        (f.first_step, f.last_step)
        for f in incident.causes
        if f.optimizer == incident.optimizer and chart.id in charts.charts_of_rule(f.rule)
    ]
    return Frame(chart.title, log, marked, incident.onset.first_step if incident.onset else None)


def _evaluations(incident: Incident) -> Plot | None:
    steps = sorted({s for seen in incident.evaluations.values() for s in seen["step"]})
    curves = []
    for at, (name, seen) in enumerate(list(incident.evaluations.items())[: len(charts.PALETTE)]):
        known = dict(zip(seen["step"], seen["mean"], strict=True))
        curves.append(Curve(name, charts.PALETTE[at], [known.get(step) for step in steps]))
    chart = next(c for c in charts.RUN_CHARTS if c.id == "evaluations")
    return plot(_frame(chart, incident, False), steps, curves)


# ---------------------------------------------------------------- Markdown


def markdown(incident: Incident) -> str:
    """For a ticket or a wiki: the same without charts."""
    incident = sanitize(incident)
    return "\n".join(_markdown(incident)).rstrip() + "\n"


def _markdown(incident: Incident) -> Iterator[str]:
    run = incident.run
    read = headline.summarize(incident.evaluation, run.steps)
    yield f"# Post-mortem: {_text(run.name)}"
    yield ""
    yield f"**{run.verdict.upper()}**: {_text(read.sentence)}"
    yield ""
    size = f"{formatting.plural(run.steps, 'step')}, {formatting.plural(run.world_size, 'rank')}"
    yield f"Run `{run.id}`, {size}, {formatting.count(run.tokens)} tokens; began"
    yield f"{formatting.clock(run.started)}, last heard of {formatting.clock(run.last_seen)}."
    yield from _onset(incident)
    yield from _table("Decision tree", ("question", "answer", "why"), _tree(incident))
    for title, found in (("Findings", incident.causes), ("Symptoms", incident.symptoms)):
        if found:
            yield from ("", f"## {title}")
            for finding in found:
                yield from _finding(finding)
    left = f" ({incident.left_out} further away left out)" if incident.left_out else ""
    events = [
        (e.step, formatting.clock(e.time) if e.time else "", e.kind, e.text)
        for e in incident.events
    ]
    yield from _table(f"Timeline{left}", ("step", "time", "kind", "what"), events)
    yield from _table("Not measured", ("rule", "why"), incident.unmeasured)
    yield from _table("Environment", ("what", "value"), list(run.environment.items()))
    yield from _table("Configuration", ("what", "value"), list(run.config.items()))


def _onset(incident: Incident) -> Iterator[str]:
    if incident.onset is not None:
        yield from (
            "",
            f"- first bad step: **{incident.onset.first_step}** (`{incident.onset.rule}`)",
        )
    yield f"- {_text(incident.restart)}"
    if incident.cost is not None:
        yield f"- since then: {cost_text(incident)}"
    for one in incident.losses:
        reported, weighed = formatting.figure(one.reported), formatting.figure(one.token_weighted)
        yield f"- loss at step {one.step}: {reported} reported, {weighed} weighed by tokens"


def cost_text(incident: Incident) -> str:
    """What was spent since the onset, in words."""
    cost = incident.cost
    assert cost is not None
    hours = "GPU-hours not known" if cost.gpu_hours is None else f"{cost.gpu_hours:.3g} GPU-hours"
    spent = f"{formatting.plural(cost.steps, 'step')}, {formatting.count(cost.tokens)} tokens"
    return f"{spent}, {cost.seconds / 3600:.3g} h, {hours} ({cost.note})"


def _tree(incident: Incident) -> list[tuple[str, str, str]]:
    return [(n.question, n.status.replace("_", " "), n.reason) for n in incident.evaluation.tree]


def _finding(finding: Finding) -> Iterator[str]:
    yield from ("", f"### {_text(finding.title)}", "")
    steps = f"steps {finding.first_step} to {finding.last_step}, {finding.steps} of them"
    why = f", explained by `{finding.inhibited_by}`" if finding.inhibited_by else ""
    yield f"`{finding.rule}`, {finding.severity}, {finding.lifecycle}, {steps}{why}"
    yield from ("", _text(finding.summary), "")
    yield from (f"- {_text(str(k))}: {_text(str(v))}" for k, v in finding.evidence.items())
    if finding.fix:
        fence = "`" * 4
        yield from ("", f"{fence}python", finding.fix.strip("\n"), fence)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    if not rows:
        return
    yield from ("", f"## {title}", "", _row(head), _row(["---"] * len(head)))
    yield from (_row([_text(str(cell)) for cell in row]) for row in rows)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    """What cannot be taken for Markdown or HTML."""
    escaped = "".join(f"\\{c}" if c in "\\`*_{}[]<>#|" else c for c in text)
    return " ".join(escaped.split())


FORMATS: dict[str, Callable[[Incident], str]] = {"html": html, "md": markdown, "json": as_json}
