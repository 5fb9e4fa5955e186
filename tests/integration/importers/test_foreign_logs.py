"""Logs of other tools as runs: what the rules measure in them, and what they do not."""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from itertools import pairwise
from pathlib import Path

import pytest

from gradledger_monitor.importers.metric_log import UnreadableLog
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.runs.resolve import store_file
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import checkpoints, queries
from gradledger_monitor.store.runs.queries import RunRow
from gradledger_monitor.store.steps import curves
from gradledger_monitor.workers.evaluator import evaluate_all
from helpers.sending import new_store

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
SAME = {  # all hold the training of make.course
    "TensorBoard": "tensorboard",
    "W&B": "wandb/history.csv",
    "W&B, JSON": "wandb/history.json",
    "W&B, JSON lines": "wandb/history.jsonl",
    "MLflow": "mlflow/mlruns",
    "MLflow, SQLite": "mlflow.sqlite",
}
STEPS, JUMP = 100, 80


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return new_store(tmp_path / "g.db")


def import_one(store: Store, path: Path) -> tuple[RunRow, EvaluationResult]:
    """The one run of a log."""
    (run,) = store_file(store, path)
    evaluate_all(store, RuleOverrides())
    row = queries.get_run(store, run)
    assert row is not None
    return row, queries.evaluation(store, run)


@pytest.mark.parametrize("log", SAME.values(), ids=SAME.keys())
def test_one_training_gives_the_same_run_from_every_tool(store: Store, log: str) -> None:
    row, evaluation = import_one(store, LOGS / log)
    columns = curves.curves(store, row.id)
    assert columns["step"] == list(range(1, STEPS + 1))
    assert columns["loss_reported"][49] == pytest.approx(4.0 * 0.99**50, rel=1e-6)
    assert columns["norm"][49] == pytest.approx(1.0)
    assert columns["lr"][49] == pytest.approx(1e-3)
    assert columns["balance"] == columns["micro_batches"] == [None] * STEPS
    evaluated = curves.eval_curves(store, row.id)
    (name,) = (n for n in evaluated if "loss" in n)
    assert evaluated[name]["step"] == list(range(10, STEPS + 1, 10))
    first_steps = {f.rule: f.first_step for f in evaluation.findings}
    assert first_steps["norm.spike"] == JUMP + 3  # the loss has stayed up
    assert first_steps["eval.diverging"] == 70
    assert row.ended


@pytest.mark.parametrize("log", SAME.values(), ids=SAME.keys())
def test_metrics_that_a_log_lacks_are_not_measured(store: Store, log: str) -> None:
    row, evaluation = import_one(store, LOGS / log)
    tool = row.environment["imported_from"]
    unmeasured = {
        r for r, status in evaluation.coverage.items() if status.startswith("not_measured")
    }
    rules = set(evaluation.coverage)
    measured = {
        "loss.diverging",
        "loss.nonfinite",
        "norm.nonfinite",
        "norm.spike",
        "norm.vanishing",
        "norm.exploding",
        "eval.diverging",
    }
    assert rules - unmeasured == measured
    status = evaluation.coverage["reduction.token_weights_unequal"]
    assert status == f"not_measured: {tool} does not log what this check needs"


def test_a_trainer_state_is_imported_with_its_checkpoints(store: Store) -> None:
    row, evaluation = import_one(store, LOGS / "trainer")
    state = json.loads((LOGS / "trainer/checkpoint-12/trainer_state.json").read_text())
    logged = {e["step"]: e for e in state["log_history"] if "loss" in e}
    columns = curves.curves(store, row.id)
    assert columns["step"] == list(range(1, 13))
    for at, step in enumerate(columns["step"]):
        assert columns["loss_reported"][at] == logged[step]["loss"]
        assert columns["norm"][at] == logged[step]["grad_norm"]
        assert columns["lr"][at] == logged[step]["learning_rate"]
    assert [c.step for c in checkpoints.of_run(store, row.id)] == [4, 8, 12]
    assert curves.eval_curves(store, row.id)["eval_loss"]["step"] == [4, 8, 12]
    assert row.config["planned_steps"] == 12
    assert evaluation.verdict == "incomplete"


def test_rows_of_lightning_that_share_a_step_are_merged(store: Store) -> None:
    row, _ = import_one(store, LOGS / "lightning/run1/metrics.csv")
    columns = curves.curves(store, row.id)
    assert len(columns["step"]) == 20
    for metric in ("loss_reported", "norm", "lr"):
        values = [v for v in columns[metric] if v is not None]
        assert len(values) == 20 and all(v > 0 for v in values), metric
    assert len(curves.eval_curves(store, row.id)["val_loss"]["step"]) == 2
    assert row.name == "run1"


def test_importing_again_changes_nothing(store: Store) -> None:
    before = import_one(store, LOGS / "tensorboard")
    again = import_one(store, LOGS / "tensorboard")
    assert again[1] == before[1]
    assert len(queries.list_runs(store)) == 1


def test_a_loss_that_is_nan_gives_a_finding(store: Store, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("step,loss,grad_norm\n1,2.0,1.0\n2,nan,inf\n3,2.0,1.0\n")
    row, evaluation = import_one(store, log)
    assert "norm.nonfinite" in {f.rule for f in evaluation.findings}
    losses = curves.curves(store, row.id)["loss_reported"]
    assert losses[1] is None or math.isnan(losses[1])


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("empty.csv", "", "no numbers"),
        ("words.csv", "a,b\nx,y\n", "no numbers"),
        ("other.csv", "step,accuracy\n1,0.5\n", "Name them: gradledger import FILE"),
        ("torn.json", '{"a":', "Expecting value"),
        ("plain.json", "3", "a table in JSON"),
        ("rows.json", "[1, 2]", "not an object"),
        ("trainer_state.json", "{}", "not a trainer_state.json of the Trainer"),
        (
            "events.out.tfevents.1",
            "not events, but long enough to be read",
            "not a TensorBoard event file",
        ),
        ("two.csv", "Step,a - loss,b - loss\n1,2,3\n", "several runs (a, b)"),
        ("odd.bin", "x", "Unrecognised log format. Pass --format tensorboard, "),
    ],
)
def test_an_unreadable_file_is_refused_with_a_reason(
    store: Store, tmp_path: Path, name: str, text: str, reason: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UnreadableLog) as error:
        store_file(store, tmp_path / name)
    assert reason in str(error.value)


BOMB = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in pairwise("abcdefghij")
)
MERGE_BOMB = "a: &a {x: 1}\n" + "".join(
    f"{new}: &{new}\n  <<: [{', '.join([f'*{old}'] * 9)}]\n" for old, new in pairwise("abcdefghij")
)


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        (BOMB, "it has YAML aliases"),
        (MERGE_BOMB, "it has YAML aliases"),
        ("run_id: " + "x" * 16_384, "larger than 16384 bytes"),
        ("run_id: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("[" * 16_000, "nested too deeply"),
        ("- a\n- b", "not a mapping"),
        ("run_id: 'x", "not the meta.yaml of an MLflow run"),
        ("run_id: 2026-13-45", "not the meta.yaml of an MLflow run"),
        ("run_id: \x00", "not the meta.yaml of an MLflow run"),
        ("", "not a mapping"),
    ],
)
def test_a_hostile_meta_yaml_is_refused(
    store: Store, tmp_path: Path, meta: str, reason: str
) -> None:
    shutil.copytree(LOGS / "mlflow/mlruns", tmp_path / "mlruns")
    (path,) = (tmp_path / "mlruns/0").glob("*/meta.yaml")
    path.write_text(meta)
    began = time.process_time()
    with pytest.raises(UnreadableLog, match=re.escape(str(path))) as error:
        store_file(store, tmp_path / "mlruns")
    assert reason in str(error.value)
    assert time.process_time() - began < 5


def test_names_of_an_mlflow_run_are_read_as_yaml(store: Store, tmp_path: Path) -> None:
    shutil.copytree(LOGS / "mlflow/mlruns", tmp_path / "mlruns")
    (path,) = (tmp_path / "mlruns/0").glob("*/meta.yaml")
    path.write_text("run_id: '0017'\nrun_name: \"it's: a \\u00e9\"\nstatus: 1\n")
    row, _ = import_one(store, tmp_path / "mlruns")
    assert row.name == "it's: a \u00e9"
    assert not row.ended
