"""The Jinja2 environment of the pages: autoescaped, strict about undefined names."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from gradledger_monitor.model.code.frames import code_frames, frame_text
from gradledger_monitor.model.findings import fix_title
from gradledger_web import assets, formatting, glossary, headline, progress
from gradledger_web.runs import columns

_FILTERS = (
    code_frames,
    frame_text,
    formatting.count,
    formatting.figure,
    formatting.finding_anchor,
    formatting.joined,
    formatting.percent,
    formatting.times,
    formatting.is_known_time,
    formatting.iso,
    formatting.time_span,
    formatting.clock,
    formatting.plural,
    formatting.quantity,
    formatting.rank_names,
    formatting.sentence,
    formatting.segment,
    glossary.facts,
    fix_title,
    glossary.headline,
    headline.points_at_code,
    columns.config_text,
    formatting.duration,
)


# Control characters that a terminal would execute, except tabs and line ends.
_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\t\n\r"
}


def _without_controls(value: Any) -> Any:
    """Untrusted text without control characters; other values unchanged."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return value.translate(_CONTROLS)


@cache
def environment() -> jinja2.Environment:
    """The environment of this process. It escapes every template, whatever its suffix."""
    jinja = jinja2.Environment(
        loader=jinja2.PackageLoader("gradledger_web"),
        autoescape=True,
        finalize=_without_controls,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters.update({function.__name__: function for function in _FILTERS})
    jinja.filters["is_lost"] = lambda run: progress.is_lost(run, time.time())
    jinja.globals.update(asset=assets.url_path, plotly_style_ids=assets.plotly_style_ids)
    jinja.globals.update(
        ANSWERS=glossary.ANSWERS,
        GLOSSARY=glossary.GLOSSARY,
        STATUSES=glossary.STATUSES,
        VERDICTS=glossary.VERDICTS,
    )
    return jinja


def render(template: str, **context: Any) -> str:
    """Render a page to text."""
    return environment().get_template(template).render(context)
