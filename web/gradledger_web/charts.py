"""The charts of the dashboard: the figures in each chart and their style, as JSON for the page.

``charts.js`` draws them from the series endpoint. Text, grid and background take their colours
from the style sheet, so that a theme changes without redrawing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gradledger_web import formatting

if TYPE_CHECKING:
    from gradledger_monitor.model.findings import TreeNode

Figure = dict[str, Any]

# The palette of Okabe and Ito: safe for colour-blind readers, contrast 3:1 on both themes.
BLUE, VERMILION, GREEN, PURPLE = "#1a7fc4", "#d55e00", "#069669", "#b0609a"
GREY = "#808896"
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, "#a37a00", "#00868b", "#7a6ff0", "#c9485b")

HEIGHT = 210

NumberFormat = Literal["figure", "percent", "count"]  # functions of ``formatting``


@dataclass(frozen=True)
class Series:
    """One line of a chart: a figure of the series endpoint and its style."""

    key: str
    label: str
    colour: str
    term: str | None = None  # its entry in the glossary
    dash: str = "solid"
    number_format: NumberFormat = "figure"
    right_axis: bool = False
    stepped: bool = False  # constant between its changes
    fill: bool = False  # the area between this line and the previous one


@dataclass(frozen=True)
class Chart:
    """One chart of the run page."""

    id: str
    title: str
    hint: str
    series: tuple[Series, ...]
    yaxis: dict[str, Any] = field(default_factory=dict)
    minimum_range: tuple[float, float] | None = None  # the y-axis includes at least this
    reference: float | None = None  # the value of a correct run
    fraction: tuple[str, str] | None = None  # a figure of 0s and 1s, and the label of its mean
    markers: tuple[str, str] | None = None  # a figure of 0s and 1s, marked at each 1; label
    objective_metric: str | None = None  # one line for each objective, of this metric
    rules: tuple[str, ...] = ()  # patterns of the rules whose findings are shaded here
    from_zero: bool = False  # the y-axis begins at 0
    log_if_wide: bool = False  # a logarithmic axis where the values span two decades
    always: bool = False  # shown even if it has no data
    number_format: NumberFormat = "figure"  # of lines that are not ``series``

    @property
    def figures(self) -> list[str]:
        """The figures that the page fetches for it."""
        figures = [series.key for series in self.series if series.key not in DERIVED]
        figures += [figure for s in self.series for figure in DERIVED.get(s.key, ())]
        return figures + [pair[0] for pair in (self.fraction, self.markers) if pair]

    def spec(self) -> Figure:
        """The chart as JSON for ``charts.js``."""
        return {
            "id": self.id,
            "title": self.title,
            "series": [asdict(series) for series in self.series],
            "figures": self.figures,
            "fraction": self.fraction,
            "markers": self.markers,
            "minimum_range": self.minimum_range,
            "from_zero": self.from_zero,
            "log_if_wide": self.log_if_wide,
            "objective_metric": self.objective_metric,
            "number_format": self.number_format,
            "layout": self._layout(),
        }

    def _layout(self) -> Figure:
        layout = _layout(self.yaxis)
        if self.reference is not None:
            layout["shapes"] = [_horizontal_line(self.reference)]
        if any(series.right_axis for series in self.series):
            layout["margin"]["r"] = 72
            layout["xaxis"]["nticks"] = 5
            layout["yaxis2"] = {**_AXIS, "overlaying": "y", "side": "right", "showgrid": False}
            layout["yaxis2"] |= {"tickmode": "auto", "tickformat": "~g", "nticks": 4}
            layout["yaxis2"]["title"] = _axis_title(
                next(s.label for s in self.series if s.right_axis)
            )
            layout["yaxis"]["title"] = _axis_title(self.series[0].label)
        return layout


# Figures that the page computes as the ratio of the means of two others.
DERIVED = {"noise_scale": ("noise_trace", "noise_signal")}

_LR = Series("lr", "learning rate", PURPLE, dash="dash", right_axis=True)

RUN_CHARTS: tuple[Chart, ...] = (
    Chart(
        id="loss",
        title="Loss",
        hint="If the lines differ, the reported loss is not the mean over all tokens.",
        log_if_wide=True,
        series=(
            Series("loss_reported", "reported", VERMILION),
            Series("loss_token", "token-weighted", BLUE, "token-weighted loss", "dash"),
        ),
        rules=("loss.*", "reduction.*", "eval.*", "run.*", "data.*"),
        always=True,
    ),
    Chart(
        id="evaluations",
        title="Evaluation",
        hint="Evaluation metrics that the script reported.",
        series=(),
        rules=("eval.*",),
    ),
    Chart(
        id="norm",
        title="Gradient norm",
        hint="Clipping scales the gradient down where its norm exceeds the limit.",
        series=(
            Series("clip_norm", "before clipping", GREY),
            Series("norm", "applied", GREEN, "gradient norm"),
            Series("clip_limit", "limit", VERMILION, dash="dot", stepped=True),
        ),
        yaxis={"type": "log"},
        fraction=("clipped", "clipped steps"),
        rules=("norm.*", "clip.*", "loop.*", "scaler.clip_before_unscale"),
        always=True,
    ),
    Chart(
        id="scale",
        title="Loss scale",
        hint="Each cross is a step that the GradScaler skipped.",
        series=(Series("scale", "scale", BLUE, stepped=True),),
        yaxis={"type": "log"},
        markers=("skipped", "skipped step"),
        fraction=("skipped", "skipped steps"),
        rules=("scaler.*", "scheduler.stepped_on_skip"),
    ),
    Chart(
        id="balance",
        title="Balance B",
        hint="1 if the gradient is divided by exactly the number of tokens in the window.",
        series=(Series("balance", "balance", BLUE, "balance"),),
        yaxis={"tickformat": ",~g"},
        minimum_range=(0, 1.5),
        from_zero=True,
        log_if_wide=True,
        reference=1,
        # unequal token weights leave the balance as it is
        rules=(
            "reduction.balance_off",
            "reduction.double_division",
            "reduction.missing_division",
            "reduction.partial_window",
            "reduction.unnormalised_sum",
            "reduction.world_size",
            "reduction.wrong_denominator",
            "scaler.step_bypassed",
            "loop.step_every_microbatch",
        ),
        always=True,
    ),
    Chart(
        id="misallocation",
        title="Misallocation d",
        hint="The share of gradient weight on the wrong tokens: 0 if all tokens have equal weight.",
        series=(
            Series(
                "misallocation",
                "misallocation",
                VERMILION,
                "misallocation",
                number_format="percent",
            ),
        ),
        yaxis={"tickformat": ".0%"},
        minimum_range=(0, 0.1),
        from_zero=True,
        rules=("reduction.token_weights_unequal", "ddp.uneven_microbatches"),
        always=True,
    ),
    Chart(
        id="objective-misallocation",
        title="Misallocation d of each objective",
        hint="Each loss of the backward has its own ledger: 0 if its tokens have equal weight.",
        series=(),
        objective_metric="misallocation",
        number_format="percent",
        yaxis={"tickformat": ".0%"},
        minimum_range=(0, 0.1),
        from_zero=True,
    ),
    Chart(
        id="objective-balance",
        title="Balance B of each objective",
        hint="The sum of an objective's weights: 1, or its coefficient.",
        series=(),
        objective_metric="balance",
        yaxis={"tickformat": ",~g"},
        minimum_range=(0, 1.5),
        from_zero=True,
        log_if_wide=True,
    ),
    Chart(
        id="tokens",
        title="Tokens per step and learning rate",
        hint="If the batch grows and the learning rate stays, training changes.",
        series=(Series("tokens", "tokens", BLUE, "token", number_format="count"), _LR),
        yaxis={"tickformat": "~s"},
        from_zero=True,
        rules=("batch.*", "scheduler.*"),
    ),
    Chart(
        id="batch",
        title="Effective batch and learning rate",
        hint="The samples in one optimizer step, over all micro-batches and ranks.",
        series=(Series("samples", "samples", GREEN, number_format="count", stepped=True), _LR),
        yaxis={"tickformat": "~s"},
        from_zero=True,
        rules=("batch.*", "scheduler.*", "loop.discarded_microbatches"),
    ),
    Chart(
        id="collectives",
        title="Collectives by micro-batch",
        hint="Under DDP, only the last micro-batch of a step should communicate.",
        series=(),
        yaxis={"autorange": "reversed", "tickformat": "d", "nticks": 6, "showgrid": False},
        rules=("ddp.*",),
    ),
    Chart(
        id="ranks",
        title="Gradient norm across ranks",
        hint="After synchronisation, all replicas have the same gradient: the band has no width.",
        series=(
            Series("smallest_norm", "smallest", BLUE),
            Series("largest_norm", "largest", VERMILION, fill=True),
        ),
        yaxis={"type": "log"},
        rules=("ddp.*",),
    ),
    Chart(
        id="noise",
        title="Gradient noise scale",
        hint="A batch much smaller than this benefits from growing; a larger one gains little.",
        series=(
            Series(
                "noise_scale",
                "noise scale, tokens",
                PURPLE,
                "noise scale",
                number_format="count",
            ),
        ),
        yaxis={"type": "log"},
    ),
)

_LR_CHART = Chart(
    id="lr",
    title="Learning rate",
    hint="",
    series=(_LR,),
    yaxis={"tickformat": "~g"},
    from_zero=True,
)

# The charts of a comparison: the figure, its title, and the chart whose y-axis it uses.
_COMPARED = {
    "loss_token": ("Token-weighted loss", "loss"),
    "loss_reported": ("Reported loss", "loss"),
    "balance": ("Balance B", "balance"),
    "misallocation": ("Misallocation d", "misallocation"),
    "norm": ("Gradient norm", "norm"),
    "lr": ("Learning rate", "lr"),
    "tokens": ("Tokens per step", "tokens"),
    "scale": ("Loss scale", "scale"),
}


_DASHES = ("solid", "dash", "dot", "dashdot")  # where curves coincide, both are visible


def comparison_charts(runs: Sequence[str]) -> list[Chart]:
    """The charts of the compare page: one figure in each, its id, and one line for each run."""
    charts = {chart.id: chart for chart in (*RUN_CHARTS, _LR_CHART)}
    return [
        replace(
            charts[chart_id],
            id=figure,
            title=title,
            hint="",
            series=_lines_of_runs(charts[chart_id], figure, runs),
            fraction=None,
            markers=None,
        )
        for figure, (title, chart_id) in _COMPARED.items()
    ]


def _lines_of_runs(chart: Chart, figure: str, runs: Sequence[str]) -> tuple[Series, ...]:
    of_run = next(series for series in chart.series if series.key == figure)
    colours = zip(PALETTE, cycle(_DASHES), strict=False)
    return tuple(
        Series(
            str(index),
            run,
            colour,
            dash=dash,
            number_format=of_run.number_format,
            stepped=of_run.stepped,
        )
        for index, (run, (colour, dash)) in enumerate(zip(runs, colours, strict=False))
    )


def charts_of_rule(rule: str) -> list[str]:
    """The ids of the charts that shade the findings of a rule."""
    return [c.id for c in RUN_CHARTS if any(fnmatchcase(rule, pattern) for pattern in c.rules)]


def charts_of(imported: bool) -> tuple[Chart, ...]:
    """The charts of a run. Another tool may have logged the norm before clipping, or after it."""
    if not imported:
        return RUN_CHARTS
    return tuple(
        replace(chart, series=tuple(map(_as_logged, chart.series))) if chart.id == "norm" else chart
        for chart in RUN_CHARTS
    )


def _as_logged(series: Series) -> Series:
    return replace(series, label="as logged") if series.key == "norm" else series


def charts_with_data(measured: Iterable[str], evaluated: bool, objectives: int = 1) -> set[str]:
    """The ids of the charts that have data. Those of objectives are shown if there are several."""
    available = set(measured)
    ids = {chart.id for chart in RUN_CHARTS if available.intersection(chart.figures) - {"lr"}}
    ids |= {"collectives"} & available
    if objectives > 1:
        ids |= {chart.id for chart in RUN_CHARTS if chart.objective_metric}
    return ids | ({"evaluations"} if evaluated else set())


_NODES = {"loss": "loss", "balance": "reduction", "misallocation": "reduction"}


def reasons(tree: Iterable[TreeNode]) -> dict[str, str]:
    """Why a chart has no data: the reason of the question of the tree that it answers."""
    unmeasured = {node.node: node.reason for node in tree if node.status == "not_measured"}
    return {chart: unmeasured[node] for chart, node in _NODES.items() if unmeasured.get(node)}


class TokenShare(Protocol):
    """The columns of a ledger row that the bar chart of a step shows."""

    @property
    def short_label(self) -> str: ...
    @property
    def token_share(self) -> float: ...
    @property
    def gradient_share(self) -> float: ...


MOST_BARS = 32  # pairs of them; more are too narrow to distinguish


def shares_figure(rows: Sequence[TokenShare], unit: str = "tokens") -> Figure:
    """A bar chart: the share of tokens and the share of gradient weight of each row."""
    rows = rows[:MOST_BARS]
    labels = [row.short_label for row in rows]
    tokens = _bars(f"share of {unit}", GREY, labels, [row.token_share for row in rows])
    weight = _bars("share of gradient", VERMILION, labels, [row.gradient_share for row in rows])
    layout = _layout({"tickformat": ".2~%", "rangemode": "tozero", "nticks": 5}, height=280)
    layout |= {"barmode": "group", "bargap": 0.3, "bargroupgap": 0.08}
    name = f"{'rank/' if '/' in ''.join(labels) else ''}micro-batch"
    layout["xaxis"] |= {
        "type": "category",
        "automargin": True,
        "title": _axis_title(name),
        "unifiedhovertitle": {"text": f"{name} %{{x}}"},
    }
    return {"data": [tokens, weight], "layout": layout}


def _bars(name: str, colour: str, x: list[str], y: list[float]) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": name,
        "x": x,
        "y": y,
        "marker": {"color": colour},
        "customdata": [formatting.percent(share) for share in y],
        "hovertemplate": "%{customdata}",
    }


# Invisible ticks separate the labels of two axes where these meet, and a label from the last point.
_TICKS = {"ticks": "outside", "ticklen": 6, "tickcolor": "rgba(0,0,0,0)"}
_AXIS = {**_TICKS, "zeroline": False, "fixedrange": True, "automargin": False}


def _axis_title(text: str) -> dict[str, Any]:
    return {"text": text, "font": {"size": 11}, "standoff": 4}


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
        "xaxis": {**_TICKS, "zeroline": False, "showgrid": False, "nticks": 8, "showspikes": False},
        "yaxis": {**_AXIS, **yaxis},
    }


def _horizontal_line(value: float) -> dict[str, Any]:
    line = {"color": GREY, "width": 1, "dash": "dot"}
    position = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": value, "y1": value}
    return {"type": "line", "layer": "below", "line": line, **position}
