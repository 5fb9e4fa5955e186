"""Evidence as labelled text, and charts of figures that the service measures."""

from __future__ import annotations

from gradledger_monitor.model.chart_metrics import CHART_METRICS
from gradledger_web import charts, glossary


def test_evidence_is_labelled_and_written_by_its_kind() -> None:
    evidence = {
        "misallocation": 0.172,
        "tokens": [208, 48],
        "balance": None,
        "differ": "between ranks",
    }
    shown = [(fact.label, fact.text) for fact in glossary.facts(evidence)]
    assert shown == [
        ("misallocation d", "17.2%"),
        ("tokens", "208, 48"),
        ("weights differ", "between ranks"),
    ]


def test_long_lists_are_cut_and_counted() -> None:
    (fact,) = glossary.facts({"tokens": list(range(20))})
    assert fact.text.endswith("11, … (20 in total)")
    (fact,) = glossary.facts({"tokens": list(range(glossary.MOST_LISTED))})  # of any number
    assert fact.text.endswith("11, …")


def test_the_headline_omits_correct_values() -> None:
    labels = [fact.label for fact in glossary.headline({"misallocation": 0.2, "balance": 1.0})]
    assert labels == ["misallocation d"]
    assert [f.text for f in glossary.headline({"misallocation": 0.0, "balance": 8.0})] == ["8"]


def test_the_headline_has_the_mean_over_the_last_steps() -> None:
    evidence = {"misallocation": 0.276, "misallocation_recent": 0.258, "balance": 1.0}
    (fact,) = glossary.headline(evidence)
    assert (fact.label, fact.text) == ("recent mean d", "25.8%")


def test_the_figure_of_a_step_is_told_apart_from_the_mean() -> None:
    evidence = {"misallocation": 0.38, "misallocation_recent": 0.215}
    labels = [fact.label for fact in glossary.facts(evidence, 60)]
    assert labels == ["misallocation d of step 60", "recent mean d"]
    (fact,) = glossary.facts({"misallocation": 0.38}, 60)
    assert fact.label == "misallocation d"


def test_amounts_have_units() -> None:
    facts = glossary.facts({"usual_seconds": 1.0, "wasted_bytes": 2_400_000_000})
    assert [fact.text for fact in facts] == ["1 s", "2.4 GB"]


def test_every_term_is_in_the_glossary() -> None:
    named = {fact.term for fact in glossary.facts(dict.fromkeys(glossary._TERMS, 1.0))}
    charted = {series.term for chart in charts.RUN_CHARTS for series in chart.series}
    assert (named | charted) - {None} <= glossary.GLOSSARY.keys()


def test_charts_draw_only_what_the_service_measures() -> None:
    drawn = {figure for chart in charts.RUN_CHARTS for figure in chart.figures}
    assert drawn <= set(CHART_METRICS)
