"""Logs that other tools wrote, as runs: what the rules can say of them, and what not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from gradledger_monitor.importers.metric_log import UnreadableLog
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.runs.resolve import evaluate_all, store_file
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import checkpoints, queries
from gradledger_monitor.store.runs.queries import RunRow
from gradledger_monitor.store.steps import curves

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
    made = Store(f"sqlite:///{tmp_path / 'g.db'}")
    made.migrate()
    return made


def taken_in(store: Store, path: Path) -> tuple[RunRow, EvaluationResult]:
    """The one run of a log."""
    (run,) = store_file(store, path)
    evaluate_all(store, RuleOverrides())
    row = queries.get_run(store, run)
    assert row is not None
    return row, queries.evaluation(store, run)


@pytest.mark.parametrize("log", SAME.values(), ids=SAME.keys())
def test_one_training_says_the_same_whoever_logged_it(store: Store, log: str) -> None:
    row, evaluation = taken_in(store, LOGS / log)
    seen = curves.curves(store, row.id)
    assert seen["step"] == list(range(1, STEPS + 1))
    assert seen["loss_reported"][49] == pytest.approx(4.0 * 0.99**50, rel=1e-6)
    assert seen["norm"][49] == pytest.approx(1.0)
    assert seen["lr"][49] == pytest.approx(1e-3)
    assert seen["balance"] == seen["micro_batches"] == [None] * STEPS
    evaluated = curves.eval_curves(store, row.id)
    (name,) = (n for n in evaluated if "loss" in n)
    assert evaluated[name]["step"] == list(range(10, STEPS + 1, 10))
    found = {f.rule: f.first_step for f in evaluation.findings}
    assert found["norm.spike"] == JUMP
    assert found["eval.diverging"] == 70
    assert row.ended


@pytest.mark.parametrize("log", SAME.values(), ids=SAME.keys())
def test_what_a_log_does_not_hold_was_not_measured(store: Store, log: str) -> None:
    row, evaluation = taken_in(store, LOGS / log)
    tool = row.environment["imported_from"]
    unmeasured = {r for r, said in evaluation.coverage.items() if said.startswith("not_measured")}
    rules = set(evaluation.coverage)
    looked = {"norm.nonfinite", "norm.spike", "norm.vanishing", "norm.exploding", "eval.diverging"}
    assert rules - unmeasured == looked
    why = evaluation.coverage["reduction.token_weights_unequal"]
    assert why == f"not_measured: {tool} does not log what this rule looks at"


def test_the_trainers_state_comes_with_its_checkpoints(store: Store) -> None:
    row, evaluation = taken_in(store, LOGS / "trainer")
    state = json.loads((LOGS / "trainer/checkpoint-12/trainer_state.json").read_text())
    logged = {e["step"]: e for e in state["log_history"] if "loss" in e}
    seen = curves.curves(store, row.id)
    assert seen["step"] == list(range(1, 13))
    for at, step in enumerate(seen["step"]):
        assert seen["loss_reported"][at] == logged[step]["loss"]
        assert seen["norm"][at] == logged[step]["grad_norm"]
        assert seen["lr"][at] == logged[step]["learning_rate"]
    assert [c.step for c in checkpoints.of_run(store, row.id)] == [4, 8, 12]
    assert curves.eval_curves(store, row.id)["eval_loss"]["step"] == [4, 8, 12]
    assert row.config["planned_steps"] == 12
    assert evaluation.verdict == "incomplete"


def test_lightnings_metrics_are_read_beside_each_other(store: Store) -> None:
    row, _ = taken_in(store, LOGS / "lightning/run1/metrics.csv")
    seen = curves.curves(store, row.id)
    assert len(seen["step"]) == 20
    for figure in ("loss_reported", "norm", "lr"):
        known = [v for v in seen[figure] if v is not None]
        assert len(known) == 20 and all(v > 0 for v in known), figure
    assert len(curves.eval_curves(store, row.id)["val_loss"]["step"]) == 2
    assert row.name == "run1"


def test_importing_again_changes_nothing(store: Store) -> None:
    before = taken_in(store, LOGS / "tensorboard")
    again = taken_in(store, LOGS / "tensorboard")
    assert again[1] == before[1]
    assert len(queries.list_runs(store)) == 1


def test_a_loss_that_is_no_number_is_told_as_such(store: Store, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("step,loss,grad_norm\n1,2.0,1.0\n2,nan,inf\n3,2.0,1.0\n")
    row, evaluation = taken_in(store, log)
    assert "norm.nonfinite" in {f.rule for f in evaluation.findings}
    losses = curves.curves(store, row.id)["loss_reported"]
    assert losses[1] is None or math.isnan(losses[1])


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("empty.csv", "", "no numbers"),
        ("words.csv", "a,b\nx,y\n", "no numbers"),
        ("other.csv", "step,accuracy\n1,0.5\n", "Say which is which: gradledger import FILE"),
        ("torn.json", '{"a":', "Expecting value"),
        ("plain.json", "3", "a table in JSON"),
        ("rows.json", "[1, 2]", "not an object"),
        ("trainer_state.json", "{}", "no trainer_state.json of the Trainer"),
        ("events.out.tfevents.1", "not events, but long enough to be read", "no TensorBoard"),
        ("two.csv", "Step,a - loss,b - loss\n1,2,3\n", "several runs (a, b)"),
        ("odd.bin", "x", "of no known kind"),
    ],
)
def test_what_makes_no_sense_is_said(
    store: Store, tmp_path: Path, name: str, text: str, reason: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UnreadableLog) as told:
        store_file(store, tmp_path / name)
    assert reason in str(told.value)
