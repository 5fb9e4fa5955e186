"""The Plotly figures of the dashboard, as plain dicts that are sent as JSON.

The charts of a run are sent without data: each trace names its series in ``meta``, and the page
fills it from the series endpoint, first whole, then point by point as the run goes on. Text, grid
and background take their colours from the style sheet, so that a theme changes without redrawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Figure = dict[str, Any]

# Okabe and Ito's palette: told apart by colour-blind eyes, and 3:1 on both backgrounds.
BLUE, VERMILION, GREEN = "#1a7fc4", "#d55e00", "#069669"
GREY = "#808896"

HEIGHT = 210


@dataclass(frozen=True)
class Series:
    """One line of a chart: a key of the series endpoint and how it is drawn."""

    key: str
    label: str
    colour: str
    word: str | None = None
    dash: str = "solid"
    hover: str = ".4~g"


@dataclass(frozen=True)
class Chart:
    """One chart of the run page."""

    id: str
    title: str
    hint: str
    series: tuple[Series, ...]
    yaxis: dict[str, Any] = field(default_factory=dict)
    reference: float | None = None  # where a sound run lies

    def figure(self) -> Figure:
        """The figure without its data."""
        layout = _layout(self.yaxis)
        layout["xaxis"] |= {"tickformat": ",~d", "unifiedhovertitle": {"text": "step %{x:,}"}}
        if self.reference is not None:
            layout["shapes"] = [_level(self.reference)]
        return {"data": [_line(series) for series in self.series], "layout": layout}


RUN_CHARTS: tuple[Chart, ...] = (
    Chart(
        id="loss",
        title="Loss",
        hint="Where the two part, the script reports something else than it trains on.",
        series=(
            Series("loss_reported", "reported", VERMILION),
            Series("loss_token", "token-weighted", BLUE, "token-weighted loss", "dash"),
        ),
    ),
    Chart(
        id="norm",
        title="Gradient norm",
        hint="What the optimizer got, on a logarithmic axis.",
        series=(Series("norm", "norm", GREEN, "gradient norm"),),
        yaxis={"type": "log", "tickformat": "~g", "nticks": 3},
    ),
    Chart(
        id="balance",
        title="Balance B",
        hint="1 when the gradient is divided by exactly the tokens it saw.",
        series=(Series("balance", "balance", BLUE, "balance", hover=".5~g"),),
        yaxis={"autorangeoptions": {"include": [0, 1.5]}, "tickformat": ",~g", "nticks": 5},
        reference=1,
    ),
    Chart(
        id="misallocation",
        title="Misallocation d",
        hint="The share of gradient weight on the wrong tokens; 0 when all count alike.",
        series=(Series("misallocation", "misallocation", VERMILION, "misallocation", hover=".2%"),),
        yaxis={
            "tickformat": ".0%",
            "autorangeoptions": {"include": [0, 0.1]},
            "nticks": 5,
        },
    ),
)


class Share(Protocol):
    """What the picture of a step needs to know of one row of the ledger."""

    @property
    def label(self) -> str: ...
    @property
    def token_share(self) -> float: ...
    @property
    def gradient_share(self) -> float: ...


def shares(rows: Sequence[Share]) -> Figure:
    """Share of tokens beside share of gradient weight: unequal pairs are the injustice."""
    labels = [row.label for row in rows]
    tokens = _bars("share of tokens", GREY, labels, [row.token_share for row in rows])
    weight = _bars("share of gradient", VERMILION, labels, [row.gradient_share for row in rows])
    layout = _layout({"tickformat": ".0%", "rangemode": "tozero"}, height=280)
    layout |= {"barmode": "group", "bargap": 0.3, "bargroupgap": 0.08}
    layout["xaxis"] |= {"type": "category", "unifiedhovertitle": {"text": "micro-batch %{x}"}}
    return {"data": [tokens, weight], "layout": layout}


def _line(series: Series) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "meta": series.key,
        "name": series.label,
        "x": [],
        "y": [],
        "line": {"color": series.colour, "width": 1.75, "dash": series.dash},
        "marker": {"size": 4, "color": series.colour},
        "hovertemplate": f"%{{y:{series.hover}}}",
    }


def _bars(name: str, colour: str, x: list[str], y: list[float]) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": name,
        "x": x,
        "y": y,
        "marker": {"color": colour},
        "hovertemplate": "%{y:.2%}",
    }


def _layout(yaxis: dict[str, Any], height: int = HEIGHT) -> dict[str, Any]:
    return {
        "height": height,
        "margin": {"l": 58, "r": 10, "t": 10, "b": 30},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "hovermode": "x unified",
        "dragmode": "zoom",
        "font": {"size": 12},
        "uirevision": "keep",  # the user's zoom outlives new points
        "xaxis": {"zeroline": False, "showgrid": False, "nticks": 8},
        "yaxis": {"zeroline": False, "fixedrange": True, "automargin": False, **yaxis},
    }


def _level(value: float) -> dict[str, Any]:
    line = {"color": GREY, "width": 1, "dash": "dot"}
    across = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": value, "y1": value}
    return {"type": "line", "layer": "below", "line": line, **across}
