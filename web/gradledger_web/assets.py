"""Styles, scripts and plotly.js: their files, and URLs that change with their content."""

from __future__ import annotations

import gzip
import re
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import plotly
from markupsafe import Markup

FOLDER = Path(str(files("gradledger_web"))) / "static"
PLOTLY = "plotly.js"

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@cache
def paths() -> dict[str, Path]:
    """Every asset by name. Nothing else is served."""
    own = {path.name: path for path in FOLDER.iterdir() if path.suffix in _TYPES}
    bundle = Path(str(files(plotly))) / "package_data" / "plotly.min.js"
    return {**own, PLOTLY: bundle}


@cache
def url_path(name: str) -> str:
    """The URL path of an asset. It contains a hash, so that browsers may cache it forever.

    All assets of this package share one hash: a script imports others relative to its own URL, and
    a module that is loaded from two URLs runs twice.
    """
    versioned = (
        [paths()[PLOTLY]] if name == PLOTLY else sorted(set(paths().values()) - {paths()[PLOTLY]})
    )
    content = b"".join(path.read_bytes() for path in versioned)
    return f"/static/{sha256(content).hexdigest()[:12]}/{name}"


def media_type(name: str) -> str:
    """The content type of an asset."""
    return f"{_TYPES[Path(name).suffix]}; charset=utf-8"


@cache
def compressed(name: str) -> bytes:
    """The content of an asset, gzipped once: plotly.js shrinks to a third."""
    return gzip.compress(paths()[name].read_bytes(), compresslevel=6, mtime=0)


@cache
def inline(name: str) -> Markup:
    """A style sheet of this package, for a page that needs no network."""
    return Markup(paths()[name].read_text(encoding="utf-8"))  # nosec B704


@cache
def plotly_style_ids() -> list[str]:
    """The ids of the style elements that plotly.js adds, unless elements with these ids exist."""
    text = paths()[PLOTLY].read_text(encoding="utf-8")
    return sorted(set(re.findall(r'getElementById\("([0-9a-f]{64})"\)', text)))
