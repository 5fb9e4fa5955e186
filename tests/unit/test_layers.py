"""Layers of several ranks become those of the model; many become a heat map that fits a page."""

from __future__ import annotations

import math

import pytest

from gradledger.capture.layers import open_layers
from gradledger_monitor.ingest.schema import Layers
from gradledger_monitor.model.layers.combined import Layer, combined
from gradledger_web.layer_map import MOST_COLUMNS, MOST_ROWS, layer_maps


def test_shards_combine_to_the_norm_of_the_whole_layer() -> None:
    one = Layers(names=["w"], sizes=[3], gradient=[2.0], parameter=[1.0], update=[0.1])
    other = Layers(names=["w"], sizes=[1], gradient=[4.0], parameter=[3.0], update=[0.3])
    (layer,) = combined({0: one, 1: other}, sharded=True)
    assert layer.size == 4
    assert layer.gradient == pytest.approx(math.sqrt((3 * 4 + 16) / 4))
    assert layer.ratio == pytest.approx(math.sqrt(0.03 + 0.09) / math.sqrt(3 + 9))


def test_replicas_count_once_and_stages_add_their_layers() -> None:
    first = Layers(names=["a"], sizes=[2], gradient=[None], parameter=[0.0], earlier=[0])
    last = Layers(names=["a", "b"], sizes=[2, 2], gradient=["NaN", 0.0], parameter=[0.0, 1.0])
    a, b = combined({1: last, 0: first}, sharded=False)
    assert (a.name, a.gradient, a.earlier, a.ratio) == ("a", None, True, None)
    assert (b.name, b.gradient, b.update) == ("b", 0.0, None)


def test_a_long_run_of_a_deep_model_is_thinned() -> None:
    layers = [Layer(f"layers.{i}.weight", 1, 10.0**-i, 1.0, 0.1) for i in range(300)]
    (gradient, _) = layer_maps([(step, layers) for step in range(1, 501)])
    assert len(gradient.steps) == MOST_COLUMNS and gradient.steps[-1] == 500
    assert len(gradient.rows) == MOST_ROWS and gradient.hidden == 300 - MOST_ROWS
    assert gradient.rows[0].cells[0].colour > gradient.rows[-1].cells[0].colour


def test_absent_zero_and_infinite_gradients_have_their_own_colours() -> None:
    values = (None, 0.0, math.inf, 1.0)
    layers = [Layer(str(i), 1, value, 1.0, None) for i, value in enumerate(values)]
    (gradient,) = layer_maps([(1, layers)])
    assert [row.cells[0].colour for row in gradient.rows[:3]] == [-2, -1, 8]
    assert [row.first for row in gradient.rows[:2]] == ["none", "0"]
    assert layer_maps([]) == []


def test_the_legend_names_the_ends_of_the_colour_scale() -> None:
    """A scale has a decade at least: values that are close together do not fill it."""
    for values, ends in ((1.0, 2.0), ("0.4472", "4.472")), ((1.0, 1000.0), ("1", "1,000")):
        layers = [Layer(str(i), 1, value, 1.0, None) for i, value in enumerate(values)]
        (gradient,) = layer_maps([(1, layers)])
        assert (gradient.low, gradient.high) == ends
        assert gradient.alt_text.endswith(f"between {ends[0]} and {ends[1]}")


def test_the_steps_that_are_measured_are_few() -> None:
    steps = [1]
    while steps[-1] < 1_000_000:
        steps.append(open_layers.next_step(steps[-1]))
    assert steps[:6] == [1, 2, 3, 5, 10, 15]
    assert len(steps) < 130


def test_more_parameters_than_fit_become_modules() -> None:
    names = [f"layers.{i}.{part}.weight" for i in range(300) for part in ("up", "down")]
    groups = open_layers._grouped(names)
    assert groups == [[2 * i, 2 * i + 1] for i in range(300)]
    unknown = [f"parameter {i}" for i in range(1100)]
    groups = open_layers._grouped(unknown)
    assert len(groups) <= 512 and sorted(i for group in groups for i in group) == list(range(1100))
