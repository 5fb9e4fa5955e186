"""`export`, `import`, `replay`, `compare` and `postmortem` on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gradledger_monitor.cli import app
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import evaluation
from helpers.batches import EndRecord, batch, fair_step, step
from helpers.command import gradledger
from helpers.sending import evaluate_pending, new_store, send

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
UNEQUAL = "reduction.token_weights_unequal"


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("GRADLEDGER_DB", "GRADLEDGER_URL", "GRADLEDGER_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a healthy and a broken run."""
    path = tmp_path_factory.mktemp("runs") / "g.db"
    store = new_store(path)
    send(store, [*map(step, range(1, 31)), EndRecord(1.0, [30])], run="bad", name="after")
    send(store, [*map(fair_step, range(1, 31)), EndRecord(1.0, [30])], run="good", name="before")
    evaluate_pending(store, 0)
    store.close()
    return path


@pytest.fixture
def url(database: Path, tmp_path: Path) -> str:
    """A copy of the database."""
    return f"sqlite:///{shutil.copy(database, tmp_path)}"


def command(*arguments: object) -> Result:
    """The result of a command line."""
    return CliRunner().invoke(app, [str(word) for word in arguments])


def test_an_imported_export_has_the_same_run(url: str, tmp_path: Path) -> None:
    done = command("export", "after", "--db", url)
    assert done.exit_code == 0, done.output
    assert "bad.jsonl.zst: 30 step records" in done.output
    other = f"sqlite:///{tmp_path / 'other.db'}"
    for stored in ("31 stored, 0 already there", "0 stored, 31 already there"):
        taken = command("import", "bad.jsonl.zst", "--db", other)
        assert taken.exit_code == 0, taken.output
        assert stored in taken.output
    store = Store(other)
    evaluate_pending(store, 0)
    assert evaluation(store, "bad") == evaluation(Store(url), "bad")


def test_replay_of_the_store_and_of_the_archive_has_the_stored_verdict(url: str) -> None:
    command("export", "bad", "--db", url)
    for run in ("bad", "bad.jsonl.zst"):
        done = command("replay", run, "--db", url)
        assert done.exit_code == 0, done.output
        assert "no difference from the stored verdict" in done.output


def test_replay_with_other_rules_prints_changes_and_stores_nothing(
    url: str, tmp_path: Path
) -> None:
    before = evaluation(Store(url), "bad")
    (tmp_path / "rules.toml").write_text('rules_off = ["reduction.*"]\n')
    done = command("replay", "bad", "--rules", "rules.toml", "--json", "v.json", "--db", url)
    assert done.exit_code == 1, done.output
    assert "verdict: broken to balanced" in done.output
    assert f"gone: {UNEQUAL} from step 1" in done.output
    assert json.loads((tmp_path / "v.json").read_text())["findings"] == []
    assert evaluation(Store(url), "bad") == before


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rules_off = [", "--rules"),
        ("nonsense = 1", "no setting nonsense"),
        ('rules_off = ["nonsense.*"]', "no rule matches"),
        ("[thresholds.nonsense]\nx = 1", "no rule 'nonsense'"),
    ],
)
def test_invalid_rules_are_bad_usage(url: str, text: str, reason: str) -> None:
    Path("rules.toml").write_text(text)
    done = command("replay", "bad", "--rules", "rules.toml", "--db", url)
    assert done.exit_code == 2
    assert reason in " ".join(done.output.replace("│", " ").split())


def test_compare_exits_1_when_the_balance_moved(url: str, tmp_path: Path) -> None:
    done = command("compare", "before", "after", "--db", url, "--json", "c.json")
    assert done.exit_code == 1, done.output
    document = json.loads((tmp_path / "c.json").read_text())
    assert document["moved"] == [
        "the verdict went from balanced to broken",
        f"new finding: {UNEQUAL}",
        "misallocation went from 0 to 0.25",
    ]
    assert document["before"]["tokens"] == document["after"]["tokens"] == 40
    for same in (("bad", "bad"), ("bad", "good")):
        better = command("compare", *same, "--db", url)
        assert better.exit_code == 0, better.output
        assert "did not move" in better.output


def test_postmortem_has_the_format_of_its_file_name(url: str, tmp_path: Path) -> None:
    for name, begins in (("r.html", "<!doctype html>"), ("r.md", "# Post-mortem"), ("r.json", "{")):
        done = command("postmortem", "bad", "-o", name, "--db", url)
        assert done.exit_code == 0, done.output
        assert (tmp_path / name).read_text().startswith(begins)
    done = command("postmortem", "bad", "-o", "-", "--format", "md", "--db", url)
    assert "first bad step: **1**" in done.output
    assert command("postmortem", "bad", "--db", url).output == "postmortem-bad.html\n"


def test_a_log_of_another_tool_needs_no_import(tmp_path: Path) -> None:
    done = command("postmortem", LOGS / "tensorboard", "-o", "-", "--format", "md")
    assert done.exit_code == 0, done.output
    assert "TensorBoard does not log what this check needs" in done.output
    assert "first bad step: **70**" in done.output


def test_columns_may_be_named_and_the_run_too(tmp_path: Path) -> None:
    rows = ["it,objective,gn", *(f"{n},{4 / n},1.0" for n in range(1, 20))]
    Path("log.csv").write_text("\n".join(rows))
    db = f"sqlite:///{tmp_path / 'other.db'}"
    named = ["--map", "step=it", "--map", "loss=objective", "--map", "norm=gn"]
    done = command("import", "log.csv", *named, "--run", "mine", "--name", "my run", "--db", db)
    assert done.exit_code == 0, done.output
    shown = command("postmortem", "mine", "--db", db, "-o", "-", "--format", "json")
    document = json.loads(shown.output)
    assert (document["name"], document["environment"]["imported_from"]) == ("my run", "a table")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["postmortem", "nobody"], "no run 'nobody'"),
        (["export", "nobody"], "no run 'nobody'"),
        (["compare", "nobody", "bad"], "no run 'nobody'"),
        (["import", "x.csv", "--map", "nonsense=a"], "is not MEANING=COLUMN"),
        (["import", "x.csv", "--format", "nonsense"], "no format 'nonsense'"),
        (["import", "x.csv", "--run", "a b"], "letters, digits"),
    ],
)
def test_bad_usage_has_a_reason(url: str, words: list[str], reason: str) -> None:
    Path("x.csv").write_text("step,loss\n1,2\n")
    done = command(*words, "--db", url)
    assert done.exit_code == 2
    assert reason in " ".join(done.output.replace("│", " ").split())


def test_a_spool_needs_no_service(tmp_path: Path) -> None:
    Path("left.jsonl").write_bytes(batch("left", [*map(step, range(1, 6)), EndRecord(1.0, [5])]))
    done = command("postmortem", "left.jsonl", "-o", "-", "--format", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["first_bad_step"] == 1


def test_a_path_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "pages"
    file.write_text("")
    done = gradledger("rules", "--write", file / "rules")
    assert done.returncode == 2
    assert done.stderr == f"gradledger: {file / 'rules'}: Not a directory\n"
