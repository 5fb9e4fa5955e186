"""Evidence in words, and charts that name what the service measures."""

from __future__ import annotations

from gradledger_monitor.model.chart_metrics import CHART_METRICS
from gradledger_web import charts, glossary


def test_evidence_is_labelled_and_written_by_its_kind() -> None:
    evidence = {"misallocation": 0.172, "tokens": [208, 48], "balance": None, "differ": "here"}
    shown = [(fact.label, fact.text) for fact in glossary.facts(evidence)]
    assert shown == [
        ("misallocation d", "17.2 %"),
        ("tokens", "208, 48"),
        ("weights differ", "here"),
    ]


def test_long_lists_are_cut_and_counted() -> None:
    (fact,) = glossary.facts({"tokens": list(range(64))})
    assert fact.text.endswith("11, … (64 in all)")


def test_the_headline_leaves_out_what_is_sound() -> None:
    labels = [fact.label for fact in glossary.headline({"misallocation": 0.2, "balance": 1.0})]
    assert labels == ["misallocation d"]
    assert [f.text for f in glossary.headline({"misallocation": 0.0, "balance": 8.0})] == ["8"]


def test_every_word_that_is_explained_has_an_explanation() -> None:
    named = {fact.word for fact in glossary.facts(dict.fromkeys(glossary._WORDS, 1.0))}
    charted = {series.word for chart in charts.RUN_CHARTS for series in chart.series}
    assert (named | charted) - {None} <= glossary.GLOSSARY.keys()


def test_charts_draw_only_what_the_service_measures() -> None:
    drawn = {figure for chart in charts.RUN_CHARTS for figure in chart.figures}
    assert drawn <= set(CHART_METRICS)
