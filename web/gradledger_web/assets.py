"""Style, scripts and plotly.js: where they lie and the addresses under which they never change."""

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
    """Every asset by its name; what is not in here is not served."""
    ours = {path.name: path for path in FOLDER.iterdir() if path.suffix in _TYPES}
    bundle = Path(str(files(plotly))) / "package_data" / "plotly.min.js"
    return {**ours, PLOTLY: bundle}


@cache
def url_path(name: str) -> str:
    """The asset's URL path: the hash of its content lets browsers keep it for ever."""
    return f"/static/{sha256(paths()[name].read_bytes()).hexdigest()[:12]}/{name}"


def media_type(name: str) -> str:
    """The content type of an asset."""
    return f"{_TYPES[Path(name).suffix]}; charset=utf-8"


@cache
def compressed(name: str) -> bytes:
    """The asset's content, gzipped once: plotly.js shrinks to a third."""
    return gzip.compress(paths()[name].read_bytes(), compresslevel=6, mtime=0)


@cache
def inline(name: str) -> Markup:
    """A style sheet of ours, to be part of a page that stands alone."""
    return Markup(paths()[name].read_text(encoding="utf-8"))  # nosec B704


@cache
def foreign_styles() -> list[str]:
    """Ids of the style elements that plotly.js adds for maps, unless the page has them already."""
    text = paths()[PLOTLY].read_text(encoding="utf-8")
    return sorted(set(re.findall(r'getElementById\("([0-9a-f]{64})"\)', text)))
