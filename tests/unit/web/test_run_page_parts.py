"""Parts of the run and step pages: the calls of a window, the decision tree, ranks, charts."""

from __future__ import annotations

import pytest

from gradledger_monitor.api.pages import run as run_page
from gradledger_monitor.ingest.schema import Event, MicroBatch, StepRecord
from gradledger_monitor.model.findings import EvaluationResult, Finding, TreeNode
from gradledger_monitor.model.ranks.topology import RankPart, Topology
from gradledger_web import charts, evidence_svg, rank_table, tree_svg, window_timeline


@pytest.mark.parametrize(("skipped", "step"), [(False, "optimizer.step"), (True, "step skipped")])
def test_the_step_of_a_gradscaler_stands_before_its_update(skipped: bool, step: str) -> None:
    events = [Event(op="scaler_step", after=1), Event(op="update", after=1)]
    record = StepRecord(
        optimizer=0, step=1, time=1.0, micro_batches=[MicroBatch()], events=events, skipped=skipped
    )
    names = [call.name for call in window_timeline.calls_of(record)]
    assert names == ["backward 1", "scaler.step", step, "scaler.update"]


def test_the_tree_does_not_repeat_a_reason_and_has_the_colour_of_its_worst_finding() -> None:
    reason = "the log has no backward"
    warning = Finding("reduction.balance_off", 0, "warning", 1, 2, 2, "", "", "", evidence={})
    tree = [
        TreeNode("loss", "?", "not_measured", reason),
        TreeNode("run", "?", "not_measured", reason),
        TreeNode("reduction", "?", "finding", warning.rule),
        TreeNode("loop", "?", "not_measured", reason),
    ]
    latest = {"balance": [4.0], "misallocation": [0.0]}
    nodes = tree_svg.build_nodes(EvaluationResult("suspect", [warning], tree, {}), [], latest, 1)
    assert [node.reason for node in nodes] == [reason, tree_svg.SAME, "", reason]
    assert [node.severity for node in nodes] == ["", "", "warning", ""]
    assert nodes[2].evidence == "last B = 4"  # not the misallocation, which is right


def test_the_question_about_norms_leads_to_the_spike_and_counts_them() -> None:
    finding = Finding("norm.spike", 0, "warning", 61, 62, 2, "", "", "", evidence={})
    text = "1 spike, 249x at step 40,000, recovered"
    tree = [TreeNode("norm", "?", "finding", f"norm.spike: {text}")]
    evaluation = EvaluationResult("suspect", [finding], tree, {"norm.spike": f"finding: {text}"})
    (node,) = tree_svg.build_nodes(evaluation, [finding], {"norm": [1.0]}, 1)
    assert (node.suspect, node.severity) == (finding, "warning")
    assert node.evidence == f"{text}, norm 1"


def test_of_many_ranks_those_without_a_record_come_first() -> None:
    size = 2 * rank_table.MOST_ROWS
    parts = [RankPart(rank, 8, 2, computes_loss=True) for rank in range(size) if rank != size - 2]
    rows = rank_table.rank_rows(Topology(size, [], [], [], parts), [])
    assert [row.rank for row in rows][:3] == [size - 2, 0, 1]
    assert len(rows) == rank_table.MOST_ROWS


@pytest.mark.parametrize(("imported", "label"), [(False, "applied"), (True, "as logged")])
def test_the_norm_of_another_tool_is_not_called_applied(imported: bool, label: str) -> None:
    chart = next(chart for chart in charts.charts_of(imported=imported) if chart.id == "norm")
    assert label in {series.label for series in chart.series}


def test_a_figure_that_later_steps_did_not_measure_is_dated() -> None:
    tree = [TreeNode("reduction", "?", "ok"), TreeNode("loop", "?", "ok")]
    latest: dict[str, list[float | None]] = {
        "step": [3, 4, 5],
        "balance": [1.0, None, None],
        "misallocation": [0.0, 0.0, 0.0],
        "micro_batches": [2.0, 2.0, None],
        "evaluation loss": [0.3, None],
    }
    nodes = tree_svg.build_nodes(EvaluationResult("balanced", [], tree, {}), [], latest, 1)
    assert nodes[0].evidence == "last B = 1 at step 3, last d = 0%"
    assert nodes[1].evidence == "2 micro-batches per step at step 4"


def test_the_gradient_of_each_layer_is_drawn_on_a_log_scale_with_gaps_for_zeros() -> None:
    chart = evidence_svg.layer_chart([1e-8, 0.0, 1e-6, 1e-4], "first", "last")
    assert chart is not None
    assert (chart.bottom, chart.top) == ("1e-08", "0.0001")
    assert chart.path == "M3 37M65.67 20L97 3"
    assert evidence_svg.layer_chart([0.0, 1e-4], "first", "last") is None


def test_layers_are_not_drawn_where_the_finding_lists_a_part_of_them() -> None:
    """The last layer that the text names would not be the last of the line."""
    evidence = {"gradients": [1e-6, 1e-4], "layers": 2, "first": "a", "last": "b"}
    assert run_page.layers_of(evidence) is not None
    assert run_page.layers_of({**evidence, "layers": 3}) is None
    assert run_page.layers_of({"gradients": [1e-6, 1e-4]}) is None
