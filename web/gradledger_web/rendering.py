"""Jinja2 as the pages use it: autoescaped, strict about names, with our filters."""

from __future__ import annotations

from functools import cache
from typing import Any

import jinja2

from gradledger_web import assets, formats, progress, words

_FILTERS = (
    formats.count,
    formats.figure,
    formats.listed,
    formats.percent,
    formats.times,
    formats.iso,
    formats.clock,
    formats.plural,
    formats.segment,
    words.facts,
    words.headline,
    progress.duration,
)


@cache
def environment() -> jinja2.Environment:
    """One environment for the process; every template is escaped, whatever its name."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("gradledger_web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update({each.__name__: each for each in _FILTERS})
    made.globals.update(asset=assets.address, foreign_styles=assets.foreign_styles)
    made.globals.update(GLOSSARY=words.GLOSSARY, VERDICTS=words.VERDICTS, STATUSES=words.STATUSES)
    return made


def render(template: str, **context: Any) -> str:
    """A page as text."""
    return environment().get_template(template).render(context)
