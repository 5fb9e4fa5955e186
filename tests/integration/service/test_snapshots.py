"""If a snapshot cannot be used, a run is evaluated again, or a note states why that is impossible.

On both databases: whatever happened to the snapshot, the verdict never gets better by it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from sqlalchemy import delete, func, select, update

from gradledger_monitor.evaluation import evaluator_version
from gradledger_monitor.model.findings import Finding
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store import tables
from gradledger_monitor.store.admin.retention import RetentionPolicy
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import RunRow, evaluation, get_run
from gradledger_monitor.store.steps.curves import curves
from gradledger_monitor.workers.evaluator import LONGEST_QUARANTINE, QUARANTINE, Evaluator
from gradledger_monitor.workers.retention import run_retention
from helpers import http
from helpers.batches import EvalRecord, fair_step, step
from helpers.sending import Clock, judged, send
from helpers.service import running_service

DETAIL = RetentionPolicy(detail_days=1e-9, steps_days=0)
UNEQUAL = "reduction.token_weights_unequal"

EVERY_STEPS = "gradledger_monitor.store.evaluation.snapshots.EVERY_STEPS"

Damage = Callable[[Store], None]
Databases = Callable[[str], str]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EVERY_STEPS, 16)


@pytest.fixture(scope="module")
def lived(module_databases: Databases, migrated: str) -> str:
    """A database with a live run of 400 steps, evaluated."""
    url = module_databases(migrated)
    with pytest.MonkeyPatch.context() as monkeypatch, closing(Store(url)) as store:
        monkeypatch.setattr(EVERY_STEPS, 16)
        live_run(store)
    return url


@pytest.fixture
def live(lived: str, databases: Databases) -> Iterator[Store]:
    """A copy of it."""
    with closing(Store(databases(lived))) as store:
        yield store


@pytest.fixture
def upgrade(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Makes the code of the evaluator another version."""

    def change() -> None:
        monkeypatch.setattr(evaluator_version, "sources", list)
        evaluator_version.version.cache_clear()

    yield change
    monkeypatch.undo()
    evaluator_version.version.cache_clear()


def row(store: Store, run: str = "r") -> RunRow:
    """The run as the API shows it."""
    result = get_run(store, run)
    assert result is not None
    return result


def change(store: Store, alter: Callable[[bytes], bytes]) -> None:
    """Alter every saved state."""
    with store.writing() as connection:
        c = tables.snapshots.c
        for run, level, state in connection.execute(select(c.run, c.level, c.state)).all():
            statement = update(tables.snapshots).where(c.run == run, c.level == level)
            connection.execute(statement.values(state=alter(state)))


def flip(state: bytes) -> bytes:
    """One bit is wrong."""
    index, bit = random.Random(len(state)).randrange(len(state)), 1 << 3
    return state[:index] + bytes([state[index] ^ bit]) + state[index + 1 :]


def remove(store: Store) -> None:
    """No state is left."""
    with store.writing() as connection:
        connection.execute(delete(tables.snapshots))


DAMAGES: dict[str, tuple[Damage, str]] = {
    "truncated": (lambda store: change(store, lambda state: state[:-7]), "damaged"),
    "flipped": (lambda store: change(store, flip), "damaged"),
    "empty": (lambda store: change(store, lambda _: b""), "damaged"),
    "foreign": (lambda store: change(store, lambda _: b"\x80\x05N."), "damaged"),
    "removed": (remove, "missing"),
}


@pytest.fixture(params=DAMAGES)
def damage(request: pytest.FixtureRequest) -> tuple[Damage, str]:
    """A way to lose a state, and a word of the note on it."""
    return DAMAGES[request.param]


def live_run(store: Store, first: int = 1, last: int = 400) -> None:
    """A run with unequal weights in steps 150 to 199."""
    evaluator = Evaluator(store)
    for begin in range(first, last + 1, 50):
        steps = range(begin, begin + 50)
        send(store, [step(n) if 150 <= n < 200 else fair_step(n) for n in steps])
        evaluator.evaluate_pending()


def prune(store: Store) -> None:
    """Prune all records that can be pruned."""
    assert run_retention(store, DETAIL, RuleOverrides()).records > 300


def unequal(store: Store) -> Finding:
    """The finding on the weights."""
    (finding,) = (f for f in evaluation(store, "r").findings if f.rule == UNEQUAL)
    return finding


# ---------------------------------------------------------------- all records are there


def test_an_intact_state_is_restored_without_a_note(live: Store) -> None:
    live_run(live, 401, 450)
    assert (row(live).earlier_version, row(live).evaluation_note) == (False, None)


def test_a_lost_state_is_rebuilt_from_the_records(live: Store, damage: tuple[Damage, str]) -> None:
    before = evaluation(live, "r"), curves(live, "r")
    damage[0](live)
    send(live, [fair_step(401)])
    Evaluator(live).evaluate_pending()
    assert judged(live) == 401 and unequal(live) == before[0].findings[0]
    note = row(live).evaluation_note
    assert note is not None and note.startswith("Evaluated again from the stored records: ")
    assert damage[1] in note and not row(live).earlier_version


def test_of_several_states_the_last_intact_one_counts(live: Store) -> None:
    with live.writing() as connection:
        newest = select(func.max(tables.snapshots.c.steps)).scalar_subquery()
        connection.execute(
            update(tables.snapshots).where(tables.snapshots.c.steps == newest).values(state=b"?")
        )
        connection.exec_driver_sql("UPDATE chunks SET records = 'rubbish' WHERE last <= 250")
    send(live, [fair_step(401)])
    Evaluator(live).evaluate_pending()
    assert judged(live) == 401 and unequal(live).steps == 50


def test_after_an_upgrade_a_run_is_evaluated_again(
    live: Store, upgrade: Callable[[], None]
) -> None:
    upgrade()
    send(live, [fair_step(401)])
    Evaluator(live).evaluate_pending()
    assert judged(live) == 401 and unequal(live).steps == 50
    assert "another version of gradledger" in str(row(live).evaluation_note)
    assert not row(live).earlier_version


def test_other_settings_are_no_damage(store: Store) -> None:
    live_run(store, last=100)
    send(store, [fair_step(101)])
    Evaluator(store, overrides=lambda: RuleOverrides(off=("norm.*",))).evaluate_pending()
    assert judged(store) == 101 and row(store).evaluation_note is None


# ---------------------------------------------------------------- the first records are pruned


def test_findings_of_pruned_steps_outlive_a_lost_state(
    live: Store, damage: tuple[Damage, str]
) -> None:
    prune(live)
    before, carried = evaluation(live, "r"), unequal(live)
    damage[0](live)
    live_run(live, 401, 450)
    assert judged(live) == 450 and unequal(live) == carried
    assert evaluation(live, "r").verdict == before.verdict == "broken"
    assert evaluation(live, "r").coverage == before.coverage
    assert row(live).earlier_version
    note = str(row(live).evaluation_note)
    assert note.startswith("Evaluated by an earlier version up to step 400: ") and damage[1] in note
    live_run(live, 451, 500)  # by another evaluator, which restores what the last one saved
    assert judged(live) == 500 and unequal(live) == carried
    assert str(row(live).evaluation_note) == note


def test_an_upgrade_keeps_the_findings_of_pruned_steps(
    live: Store, upgrade: Callable[[], None]
) -> None:
    prune(live)
    before = unequal(live)
    upgrade()
    send(live, [step(n) for n in range(401, 411)])
    Evaluator(live).evaluate_pending()
    after = unequal(live)
    assert (after.first_step, after.steps, after.last_step) == (before.first_step, 60, 410)
    assert (before.lifecycle, after.lifecycle, after.since_step) == ("resolved", "ongoing", 401)
    assert evaluation(live, "r").verdict == "broken" and row(live).earlier_version


def test_late_records_of_carried_steps_are_stored_and_change_no_finding(live: Store) -> None:
    prune(live)
    send(live, [fair_step(n) for n in range(401, 450) if n != 430])
    Evaluator(live, rank_timeout=0).evaluate_pending()
    remove(live)
    send(live, [fair_step(n) for n in range(450, 461)])
    Evaluator(live).evaluate_pending()
    before = evaluation(live, "r")
    assert judged(live) == 459
    assert send(live, [step(430)]).stored == 1
    Evaluator(live).evaluate_pending()
    assert judged(live) == 459 and evaluation(live, "r") == before


def test_if_the_results_are_lost_too_the_verdict_is_not_balanced(store: Store) -> None:
    evaluator = Evaluator(store)
    send(store, [fair_step(n) for n in range(1, 401)])
    evaluator.evaluate_pending()
    assert evaluation(store, "r").verdict == "balanced"
    prune(store)
    remove(store)
    with store.writing() as connection:
        connection.execute(delete(tables.evaluations))
    send(store, [fair_step(n) for n in range(401, 451)])
    Evaluator(store).evaluate_pending()
    result = evaluation(store, "r")
    assert result.verdict == "incomplete" and row(store).earlier_version
    assert result.coverage[UNEQUAL] == "not_measured: the results of an earlier evaluation are lost"


def test_a_finding_of_a_rule_that_is_gone_stays(live: Store) -> None:
    prune(live)
    remove(live)
    with live.writing() as connection:
        connection.execute(update(tables.findings).values(rule="reduction.retired"))
        connection.execute(update(tables.evaluations).values(coverage={}))
    for first in (401, 451):
        live_run(live, first, first + 49)
        (finding,) = evaluation(live, "r").findings
        assert (finding.rule, finding.first_step, finding.steps) == ("reduction.retired", 150, 50)
        assert evaluation(live, "r").verdict == "broken"


def test_a_finding_on_the_course_of_the_run_stays(store: Store) -> None:
    records = [fair_step(n) for n in range(1, 401)]
    for n, record in enumerate(records):
        record.micro_batches[0].loss = 5.0 - n / 100
    send(store, [EvalRecord(n, 1.0, {"loss": float(n)}) for n in (20, 40, 60, 80)])
    send(store, records)
    Evaluator(store).evaluate_pending()
    (before,) = evaluation(store, "r").findings
    assert before.rule == "eval.diverging"
    prune(store)
    remove(store)
    live_run(store, 401, 450)
    assert evaluation(store, "r").findings == [before]


def test_records_stay_until_a_state_of_this_version_replaces_them(
    live: Store, upgrade: Callable[[], None]
) -> None:
    before = evaluation(live, "r")
    upgrade()
    prune(live)
    with live.reading() as connection:
        evaluators = connection.scalars(
            select(tables.snapshots.c.evaluator).where(tables.snapshots.c.level == -1)
        )
        assert list(evaluators) == [evaluator_version.version()]
    live_run(live, 401, 450)
    assert unequal(live) == before.findings[0] and not row(live).earlier_version


def test_the_api_and_the_page_show_the_note(live: Store) -> None:
    prune(live)
    remove(live)
    live_run(live, 401, 450)
    note = row(live).evaluation_note
    url = live.engine.url.render_as_string(hide_password=False)
    with running_service(url) as service:
        document = http.get(f"{service.url}/api/v1/runs/r").json()
        assert document["earlier_version"] is True and document["evaluation_note"] == note
        (listed,) = http.get(f"{service.url}/api/v1/runs").json()["runs"]
        assert listed == document
        page = http.get(f"{service.url}/runs/r").text
        assert f'<p class="small" id="evaluation-note">{note}</p>' in page


# ---------------------------------------------------------------- evaluation that fails


def spoil(store: Store, run: str) -> None:
    """Make the records of a run unreadable."""
    key = select(tables.runs.c.key).where(tables.runs.c.id == run).scalar_subquery()
    with store.writing() as connection:
        connection.execute(
            update(tables.chunks).where(tables.chunks.c.run == key).values(records=b"rubbish")
        )


def test_a_run_that_fails_stops_no_other_and_is_tried_less_and_less_often(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, now=clock)
    send(store, [fair_step(1)], run="bad")
    send(store, [fair_step(1)], run="good")
    spoil(store, "bad")
    assert sorted(evaluator.evaluate_pending()) == ["bad", "good"]
    assert (judged(store, "bad"), judged(store, "good")) == (0, 1)
    for seconds in (QUARANTINE, 2 * QUARANTINE, 4 * QUARANTINE):
        clock.time += seconds - 1
        assert evaluator.evaluate_pending() == []
        clock.time += 1
        assert evaluator.evaluate_pending() == ["bad"]
    for _ in range(10):
        clock.time += LONGEST_QUARANTINE
        assert evaluator.evaluate_pending() == ["bad"]


def test_a_run_that_fails_keeps_no_other_from_being_pruned(store: Store) -> None:
    send(store, [fair_step(n) for n in range(1, 11)], run="bad")
    send(store, [fair_step(n) for n in range(1, 11)], run="good")
    Evaluator(store).evaluate_pending()
    spoil(store, "bad")
    assert run_retention(store, DETAIL, RuleOverrides()).records == 10
