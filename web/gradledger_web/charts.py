"""The charts of the dashboard: which figures are drawn together, and how; sent to the page as JSON.

``charts.js`` draws them from the series endpoint. Text, grid and background take their colours
from the style sheet, so that a theme changes without redrawing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol

Figure = dict[str, Any]

# Okabe and Ito's palette: told apart by colour-blind eyes, and 3:1 on both backgrounds.
BLUE, VERMILION, GREEN, PURPLE = "#1a7fc4", "#d55e00", "#069669", "#b0609a"
GREY = "#808896"
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, "#a37a00", "#00868b", "#7a6ff0", "#c9485b")

HEIGHT = 210

Written = Literal["figure", "percent", "count"]


@dataclass(frozen=True)
class Series:
    """One line of a chart: a figure of the series endpoint and how it is drawn."""

    key: str
    label: str
    colour: str
    word: str | None = None
    dash: str = "solid"
    written: Written = "figure"
    right: bool = False  # on the axis of its own, to the right
    stairs: bool = False  # constant between its changes
    fill: bool = False  # the space down to the line before


@dataclass(frozen=True)
class Chart:
    """One chart of the run page."""

    id: str
    title: str
    hint: str
    series: tuple[Series, ...]
    yaxis: dict[str, Any] = field(default_factory=dict)
    least: tuple[float, float] | None = None  # what the axis shows in any case
    reference: float | None = None  # where a sound run lies
    share: tuple[str, str] | None = None  # a figure of 0 and 1, and what its mean is called
    marks: tuple[str, str] | None = None  # a figure of 0 and 1, marked where it is 1
    rules: tuple[str, ...] = ()  # whose findings are shaded here
    always: bool = False  # shown also when nothing of it was measured

    @property
    def figures(self) -> list[str]:
        """What must be fetched for it."""
        named = [series.key for series in self.series if series.key not in DERIVED]
        named += [figure for s in self.series for figure in DERIVED.get(s.key, ())]
        return named + [pair[0] for pair in (self.share, self.marks) if pair]

    def spec(self) -> Figure:
        """All that the page needs to draw it."""
        return {
            "id": self.id,
            "title": self.title,
            "series": [asdict(series) for series in self.series],
            "figures": self.figures,
            "share": self.share,
            "marks": self.marks,
            "least": self.least,
            "layout": self._layout(),
        }

    def _layout(self) -> Figure:
        layout = _layout(self.yaxis)
        if self.reference is not None:
            layout["shapes"] = [_level(self.reference)]
        if any(series.right for series in self.series):
            layout["margin"]["r"] = 58
            layout["yaxis2"] = {**_AXIS, "overlaying": "y", "side": "right", "showgrid": False}
            layout["yaxis2"] |= {"exponentformat": "e", "nticks": 4, "rangemode": "tozero"}
        return layout


# what the page computes from others: the ratio of two means
DERIVED = {"noise_scale": ("noise_trace", "noise_signal")}

_LR = Series("lr", "learning rate", PURPLE, dash="dash", right=True)

RUN_CHARTS: tuple[Chart, ...] = (
    Chart(
        id="loss",
        title="Loss",
        hint="Where the two part, the script reports something else than it trains on.",
        series=(
            Series("loss_reported", "reported", VERMILION),
            Series("loss_token", "token-weighted", BLUE, "token-weighted loss", "dash"),
        ),
        rules=("reduction.*", "eval.*", "run.*", "data.*"),
        always=True,
    ),
    Chart(
        id="evaluations",
        title="Evaluation",
        hint="What the script reported of its evaluations.",
        series=(),
        rules=("eval.*",),
    ),
    Chart(
        id="norm",
        title="Gradient norm",
        hint="Where the line meets the limit, clipping shortened the gradient.",
        series=(
            Series("clip_norm", "before clipping", GREY),
            Series("norm", "applied", GREEN, "gradient norm"),
            Series("clip_limit", "limit", VERMILION, dash="dot", stairs=True),
        ),
        yaxis={"type": "log", "tickformat": "~g", "nticks": 3},
        share=("clipped", "clipping engaged"),
        rules=("norm.*", "clip.*", "loop.*", "scaler.clip_before_unscale"),
        always=True,
    ),
    Chart(
        id="scale",
        title="Loss scale",
        hint="Each cross is a step that the GradScaler skipped.",
        series=(Series("scale", "scale", BLUE, stairs=True, written="count"),),
        yaxis={"type": "log", "nticks": 5, "tickformat": ",~g"},
        marks=("skipped", "skipped"),
        share=("skipped", "skipped"),
        rules=("scaler.*", "scheduler.stepped_on_skip"),
    ),
    Chart(
        id="balance",
        title="Balance B",
        hint="1 when the gradient is divided by exactly the tokens it saw.",
        series=(Series("balance", "balance", BLUE, "balance"),),
        yaxis={"tickformat": ",~g", "nticks": 5},
        least=(0, 1.5),
        reference=1,
        rules=("reduction.*", "scaler.step_bypassed", "loop.step_every_microbatch"),
        always=True,
    ),
    Chart(
        id="misallocation",
        title="Misallocation d",
        hint="The share of gradient weight on the wrong tokens; 0 when all count alike.",
        series=(
            Series("misallocation", "misallocation", VERMILION, "misallocation", written="percent"),
        ),
        yaxis={"tickformat": ".0%", "nticks": 5},
        least=(0, 0.1),
        rules=("reduction.token_weights_unequal", "ddp.uneven_microbatches"),
        always=True,
    ),
    Chart(
        id="tokens",
        title="Tokens per step and learning rate",
        hint="A batch that grows while the learning rate stays is another training.",
        series=(Series("tokens", "tokens", BLUE, "token", written="count"), _LR),
        yaxis={"rangemode": "tozero", "tickformat": "~s", "nticks": 5},
        rules=("batch.*", "scheduler.*"),
    ),
    Chart(
        id="batch",
        title="Effective batch and learning rate",
        hint="Samples of all micro-batches and ranks that one optimizer step averages over.",
        series=(Series("samples", "samples", GREEN, written="count", stairs=True), _LR),
        yaxis={"rangemode": "tozero", "tickformat": "~s", "nticks": 5},
        rules=("batch.*", "scheduler.*", "loop.discarded_microbatches"),
    ),
    Chart(
        id="collectives",
        title="Collectives by micro-batch",
        hint="Under DDP only the last micro-batch of a step should communicate.",
        series=(),
        yaxis={"autorange": "reversed", "tickformat": "d", "nticks": 6, "showgrid": False},
        rules=("ddp.*",),
    ),
    Chart(
        id="ranks",
        title="Gradient norm across ranks",
        hint="After a synchronisation all replicas hold one gradient: the band has no width.",
        series=(
            Series("smallest_norm", "smallest", BLUE),
            Series("largest_norm", "largest", VERMILION, fill=True),
        ),
        yaxis={"type": "log", "tickformat": "~g", "nticks": 3},
        rules=("ddp.*",),
    ),
    Chart(
        id="noise",
        title="Gradient noise scale",
        hint="Batches much smaller than this gain from growing; beyond it, growing buys little.",
        series=(
            Series("noise_scale", "noise scale, tokens", PURPLE, "noise scale", "solid", "count"),
        ),
        yaxis={"type": "log", "tickformat": "~s", "nticks": 4},
    ),
)

# what is laid over another when runs are compared: the figure, how it is drawn, on which chart
_COMPARED = {
    "loss_token": ("Token-weighted loss", "loss"),
    "loss_reported": ("Reported loss", "loss"),
    "balance": ("Balance B", "balance"),
    "misallocation": ("Misallocation d", "misallocation"),
    "norm": ("Gradient norm", "norm"),
    "lr": ("Learning rate", "loss"),
    "tokens": ("Tokens per step", "tokens"),
    "scale": ("Loss scale", "scale"),
}


def comparison_charts() -> list[Figure]:
    """The charts in which several runs are laid over each other, one figure in each."""
    frames = {chart.id: chart for chart in RUN_CHARTS}
    return [
        {"id": figure, "title": title, "layout": _layout(frames[frame].yaxis)}
        for figure, (title, frame) in _COMPARED.items()
    ]


def charts_of_rule(rule: str) -> list[str]:
    """The charts that show where a rule found something."""
    return [c.id for c in RUN_CHARTS if any(fnmatchcase(rule, pattern) for pattern in c.rules)]


def charts_with_data(measured: Iterable[str], evaluated: bool) -> set[str]:
    """The charts that have something to show."""
    known = set(measured)
    shown = {c.id for c in RUN_CHARTS if c.always or known & {f for f in c.figures if f != "lr"}}
    shown |= {"collectives"} if "collectives" in known else set()
    return shown | ({"evaluations"} if evaluated else set())


class Share(Protocol):
    """What the picture of a step needs to know of one row of the ledger."""

    @property
    def label(self) -> str: ...
    @property
    def token_share(self) -> float: ...
    @property
    def gradient_share(self) -> float: ...


def shares_figure(rows: Sequence[Share]) -> Figure:
    """Share of tokens beside share of gradient weight: unequal pairs are the injustice."""
    labels = [row.label for row in rows]
    tokens = _bars("share of tokens", GREY, labels, [row.token_share for row in rows])
    weight = _bars("share of gradient", VERMILION, labels, [row.gradient_share for row in rows])
    layout = _layout({"tickformat": ".0%", "rangemode": "tozero"}, height=280)
    layout |= {"barmode": "group", "bargap": 0.3, "bargroupgap": 0.08}
    layout["xaxis"] |= {
        "type": "category",
        "automargin": True,
        "unifiedhovertitle": {"text": "micro-batch %{x}"},
    }
    return {"data": [tokens, weight], "layout": layout}


def _bars(name: str, colour: str, x: list[str], y: list[float]) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": name,
        "x": x,
        "y": y,
        "marker": {"color": colour},
        "hovertemplate": "%{y:.2%}",
    }


_AXIS = {"zeroline": False, "fixedrange": True, "automargin": False}


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
        "xaxis": {"zeroline": False, "showgrid": False, "nticks": 8},
        "yaxis": {**_AXIS, **yaxis},
    }


def _level(value: float) -> dict[str, Any]:
    line = {"color": GREY, "width": 1, "dash": "dot"}
    across = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": value, "y1": value}
    return {"type": "line", "layer": "below", "line": line, **across}
