"""Jinja2 as the pages use it: autoescaped, strict about names, with our filters."""

from __future__ import annotations

from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from gradledger_web import assets, formatting, glossary, progress

_FILTERS = (
    formatting.count,
    formatting.figure,
    formatting.listed,
    formatting.percent,
    formatting.times,
    formatting.iso,
    formatting.clock,
    formatting.plural,
    formatting.segment,
    glossary.facts,
    glossary.headline,
    progress.duration,
)


# what a terminal obeys and no page shows, but for tabs and the ends of lines
_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\t\n\r"
}


def _without_controls(value: Any) -> Any:
    """A text of a stranger, without control characters; anything else as it is."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return value.translate(_CONTROLS)


@cache
def environment() -> jinja2.Environment:
    """One environment for the process; every template is escaped, whatever its name."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("gradledger_web"),
        autoescape=True,
        finalize=_without_controls,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update({each.__name__: each for each in _FILTERS})
    made.globals.update(asset=assets.url_path, foreign_styles=assets.foreign_styles)
    made.globals.update(
        GLOSSARY=glossary.GLOSSARY, VERDICTS=glossary.VERDICTS, STATUSES=glossary.STATUSES
    )
    return made


def render(template: str, **context: Any) -> str:
    """A page as text."""
    return environment().get_template(template).render(context)
