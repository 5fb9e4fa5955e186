"""``gradledger.load``: runs in Python, as tables where pandas and pyarrow are there."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

import gradledger
from gradledger_monitor.archive.writer import export
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import UnknownRun
from helpers.batches import EndRecord, EvalRecord, fair_step, step
from helpers.sending import evaluate_pending, new_store, send

pandas = pytest.importorskip("pandas")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database of two runs."""
    store = new_store(tmp_path_factory.mktemp("store") / "g.db")
    send(store, [*map(step, range(1, 31)), EvalRecord(10, 1.0, {"a": 1.0, "b": 2.0})], run="bad")
    send(store, [*map(fair_step, range(1, 31)), EndRecord(1.0, [30])], run="good", name="<b>")
    evaluate_pending(store, 0)
    store.close()
    return str(store.engine.url)


def test_all_runs_of_a_database(url: str) -> None:
    runs = gradledger.load(url)
    assert sorted(run.id for run in runs) == ["bad", "good"]
    assert runs["bad"].verdict == "broken"
    assert runs[runs["good"].row.name].id == runs[0].id  # the newest of that name
    assert list(runs.table().sort_values("id")["verdict"]) == ["broken", "balanced"]
    with pytest.raises(UnknownRun, match="there is no run 'nobody'"):
        runs["nobody"]
    shown = runs._repr_html_()
    assert "&lt;b&gt;" in shown and "<b>" not in shown


def test_one_run_by_id_and_by_name(url: str) -> None:
    assert [run.id for run in gradledger.load("bad", db=url)] == ["bad"]
    assert [run.id for run in gradledger.load("<b>", db=url)] == ["good"]
    with pytest.raises(LookupError):
        gradledger.load("nobody", db=url)


def test_steps_findings_and_evaluations_as_tables(url: str, tmp_path: Path) -> None:
    (run,) = gradledger.load("bad", db=url)
    steps = run.steps()
    assert list(steps.index) == list(range(1, 31))
    assert steps["misallocation"].iloc[0] == pytest.approx(0.25)
    assert steps["tokens_total"].iloc[-1] == 30 * 40
    assert list(run.findings()["rule"]) == ["reduction.token_weights_unequal"]
    assert run.evaluations().loc[10].to_dict() == {"a": 1.0, "b": 2.0}
    assert run.arrow().column("misallocation").to_pylist() == list(steps["misallocation"])
    assert run.to_parquet(tmp_path / "r.parquet") == 30
    assert parquet.read_table(tmp_path / "r.parquet").column("step").to_pylist()[-1] == 30
    assert "Token weights differ" in run._repr_html_()
    assert "Post-mortem" in run.postmortem()
    assert "/rules/" not in run._repr_html_() + run.postmortem()  # no service is known


def test_a_card_links_to_the_service_whose_address_is_set(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADLEDGER_PUBLIC_URL", "https://ledger.example/")
    (run,) = gradledger.load("bad", db=url)
    rule = 'href="https://ledger.example/rules/reduction.token_weights_unequal"'
    for document in (run._repr_html_(), run.postmortem()):
        assert rule in document and 'href="https://ledger.example/runs/bad"' in document


def test_an_archive_stays_open_as_long_as_one_of_its_runs(url: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl.zst"
    export(Store(url), "bad", path)
    (run,) = gradledger.load(path)
    gc.collect()
    assert len(run.steps()) == 30
    del run
    gc.collect()


def test_importing_gradledger_loads_nothing_of_the_service() -> None:
    code = (
        "import sys, gradledger; print([m for m in sys.modules if 'monitor' in m or 'pandas' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
