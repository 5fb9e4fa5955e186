"""The ranges of axes: never narrower than the tolerance, logarithmic where values span decades."""

from __future__ import annotations

import pytest

from gradledger_web.chart_svg import Curve, Frame, plot
from gradledger_web.evidence_svg import line_chart

STEPS = [1, 2, 3]


@pytest.mark.parametrize(
    ("figure", "values", "bottom", "top"),
    [
        ("balance", [1.0, 1.0001, 1.0], "0.99", "1.01"),
        ("balance", [0.25, 0.25, 0.25], "0.2475", "0.2525"),
        ("balance", [1.0, 2.0, 4.0], "1", "4"),
        ("misallocation", [0.0, 1e-6, 0.0], "0%", "1.0%"),
        ("lr", [0.003, 0.003, 0.003], "0", "0.003"),
    ],
)
def test_a_sketch_does_not_magnify_what_is_within_the_tolerance(
    figure: str, values: list[float], bottom: str, top: str
) -> None:
    drawn = line_chart(figure, STEPS, values, 2, 2)
    assert drawn is not None and (drawn.bottom, drawn.top) == (bottom, top)


def test_values_that_span_decades_have_a_logarithmic_axis_that_says_so() -> None:
    drawn = line_chart("norm", STEPS, [0.01, 1.0, 100.0], 2, 2)
    assert drawn is not None and drawn.label == "gradient norm (log scale)"
    heights = [float(point.split()[1]) for point in drawn.path[1:].split("L")]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2])
    linear = line_chart("norm", STEPS, [0.01, 0.5, 0.9], 2, 2)
    assert linear is not None and "log" not in linear.label


def test_a_loss_scale_is_drawn_in_steps() -> None:
    drawn = line_chart("scale", STEPS, [4.0, 4.0, 8.0], 3, 3)
    assert drawn is not None and {"H", "V"} < set(drawn.path) and "L" not in drawn.path


def test_a_chart_of_a_post_mortem_does_the_same() -> None:
    def ticks(figure: str, values: list[float | None]) -> list[str]:
        drawn = plot(Frame("t", figure=figure), STEPS, [Curve("c", "#000", values)])
        assert drawn is not None
        return [tick.text for tick in drawn.y_ticks]

    assert ticks("balance", [0.01, 1.0, 100.0]) == ["0.01", "0.1", "1", "10", "100"]
    assert ticks("lr", [0.003, 0.003, 0.003])[0] == "0"
    assert ticks("misallocation", [0.0, 0.0, 0.0])[0] == "0%"
    assert ticks("misallocation", [0.0, 0.1, 0.2]) == ["0%", "10%", "20%"]
    assert "1" in ticks("balance", [1.0, 1.0001, 1.0])
