"""Overrides on a running service apply to all processes on its database, and are reported."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gradledger_monitor.config.settings import Settings
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store import tables
from gradledger_monitor.store.admin import maintenance, overrides
from gradledger_monitor.store.admin.retention import RetentionPolicy
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import evaluation, step_records
from gradledger_monitor.workers.evaluator import Evaluator
from gradledger_monitor.workers.retention import RetentionWorker, run_retention
from gradledger_monitor.workers.runtime_overrides import DAYS, RuntimeOverrides
from helpers import http
from helpers.batches import EndRecord, batch, eventually, step
from helpers.command import gradledger
from helpers.guarded import ADMIN, guarded_service
from helpers.patience import HANGS
from helpers.sending import send
from helpers.service import Service, running_service

UNEQUAL = "reduction.token_weights_unequal"
RULES, RETENTION = "/api/v1/settings/rules", "/api/v1/settings/retention"


@pytest.fixture
def services(backend: str, database: str) -> Iterator[list[Service]]:
    """Services on one database: two on Postgres."""
    with ExitStack() as stack:
        several = range(2 if backend == "postgres" else 1)
        yield [stack.enter_context(running_service(database)) for _ in several]


def put(service: Service, path: str, **body: object) -> httpx2.Response:
    """Update the overrides."""
    return http.put(service.url + path, json=body)


def get(service: Service, path: str) -> Any:
    """The overrides and the effective values."""
    return http.get(service.url + path).json()


def verdict_after(service: Service, first: int, last: int) -> Any:
    """The verdict after these steps, all of them unfair, were sent and evaluated."""
    assert service.post(batch("r", [step(n) for n in range(first, last + 1)])).status_code == 200
    assert eventually(HANGS, lambda: bool(service.get("/runs/r").json()["steps"] == last))
    return service.get("/runs/r/verdict").json()


def test_a_threshold_applies_from_the_next_step_in_every_process(
    services: list[Service],
) -> None:
    one, other = services[0], services[-1]
    assert [f["severity"] for f in verdict_after(other, 1, 5)["findings"]] == ["error"]
    assert put(one, RULES, thresholds={UNEQUAL: {"error": 0.9}}).status_code == 200
    verdict = verdict_after(other, 6, 6)
    assert [(f["severity"], f["steps"]) for f in verdict["findings"]] == [("warning", 6)]
    assert verdict["coverage"][UNEQUAL] == "finding: evaluated with error = 0.9 (default 0.05)"
    assert put(one, RULES, thresholds={}).status_code == 200
    verdict = verdict_after(other, 7, 7)
    assert [f["severity"] for f in verdict["findings"]] == ["error"]
    assert verdict["coverage"][UNEQUAL] == "finding"


def test_a_rule_that_is_off_is_reported_from_the_next_step(services: list[Service]) -> None:
    verdict_after(services[-1], 1, 3)
    put(services[0], RULES, off=[UNEQUAL])
    verdict = verdict_after(services[-1], 4, 4)
    assert verdict["findings"] == []
    assert verdict["coverage"][UNEQUAL] == "not_applicable: switched off in the settings"


def test_the_page_of_a_rule_shows_the_threshold_that_applies(services: list[Service]) -> None:
    page = f"{services[0].url}/rules/{UNEQUAL}"
    assert "<strong>0.93</strong>" not in http.get(page).text
    put(services[0], RULES, thresholds={UNEQUAL: {"error": 0.93}})
    assert "<strong>0.93</strong>" in http.get(page).text


def test_overrides_survive_a_restart(database: str) -> None:
    with running_service(database) as service:
        put(service, RULES, off=["clip.always_engaged"], thresholds={"norm.spike": {"z": 6}})
        put(service, RETENTION, keep_detail_days=7)
        before = get(service, RULES), get(service, RETENTION)
    with running_service(database) as service:
        assert (get(service, RULES), get(service, RETENTION)) == before
    (spike,) = [rule for rule in before[0]["rules"] if rule["rule"] == "norm.spike"]
    assert {t["name"]: t["value"] for t in spike["thresholds"]}["z"] == 6
    assert before[1]["keep_detail_days"] == {"value": 7.0, "default": 30.0, "set_in": None}


def test_absent_fields_stay_unchanged(services: list[Service]) -> None:
    service = services[0]
    put(service, RULES, off=[UNEQUAL], thresholds={"norm.spike": {"z": 6}})
    put(service, RULES, thresholds={"norm.spike": {"least": 2, "z": 4}})  # 4 is the default
    with closing(Store(service.database)) as store:
        stored = overrides.read(store, overrides.RULES)
    assert stored.value == {"off": [UNEQUAL], "thresholds": {"norm.spike": {"least": 2.0}}}
    assert stored.revision == 2
    put(service, RETENTION, keep_detail_days=7, keep_steps_days=70)
    response = put(service, RETENTION, keep_steps_days=None).json()
    assert [response[name]["value"] for name in DAYS] == [7.0, 365.0]


@pytest.mark.parametrize(
    ("path", "body", "field", "reason"),
    [
        (RULES, {"off": ["norm.spikes"]}, "off", "gradledger rules"),
        (RULES, {"off": ["norm.*"]}, "off", "gradledger rules"),
        (RULES, {"thresholds": {"norm.spikes": {"z": 1}}}, "norm.spikes", "gradledger rules"),
        (RULES, {"thresholds": {"norm.spike": {"zed": 1}}}, "norm.spike.zed", "it has z, least"),
        (RULES, {"thresholds": {"norm.spike": {"z": -1}}}, "norm.spike.z", "the default is 4"),
        (RULES, {"thresholds": {"norm.spike": {"steps": 2.5}}}, "spike.steps", "a whole number"),
        (RULES, {"thresholds": {"norm.spike": {"z": "many"}}}, "norm.spike.z", "valid number"),
        (RULES, {"on": []}, "on", "not permitted"),
        (RETENTION, {"keep_detail_days": -1}, "keep_detail_days", "greater than or equal to 0"),
        (RETENTION, {"keep_steps_days": 1e9}, "keep_steps_days", "less than or equal to 36500"),
    ],
    ids=str,
)
def test_an_invalid_override_is_refused_with_the_field(
    service: Service, path: str, body: dict[str, object], field: str, reason: str
) -> None:
    before = get(service, path)
    answer = put(service, path, **body)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["field"].endswith(field) and reason in error["reason"]
    assert get(service, path) == before


def test_of_two_concurrent_updates_the_second_is_refused(services: list[Service]) -> None:
    revision = get(services[0], RULES)["revision"]
    assert put(services[0], RULES, off=[UNEQUAL], revision=revision).status_code == 200
    answer = put(services[-1], RULES, off=[], revision=revision)
    assert answer.status_code == 409 and "have changed" in answer.json()["detail"]
    assert [r["rule"] for r in get(services[-1], RULES)["rules"] if r["off"]] == [UNEQUAL]


def test_of_many_concurrent_writes_one_succeeds(database: str) -> None:
    with closing(Store(database)) as store:
        results = []

        def write() -> None:
            try:
                overrides.write(store, "rules", {}, 0.0, expected_revision=0)
                results.append(True)
            except overrides.OverridesChanged:
                results.append(False)

        threads = [threading.Thread(target=write) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == [False] * 7 + [True]


# ---------------------------------------------------------------- precedence

OPERATOR = 'rules_off = ["clip.*"]\nkeep_steps_days = 90\n[thresholds."norm.spike"]\nz = 5\n'


def test_settings_of_the_operator_take_precedence(database: str, tmp_path: Path) -> None:
    with running_service(database) as service:
        put(service, RULES, off=[UNEQUAL], thresholds={"norm.spike": {"z": 6, "least": 2}})
        put(service, RETENTION, keep_detail_days=7, keep_steps_days=70)
    file = tmp_path / "given.toml"
    file.write_text(OPERATOR)
    settings = {"config": str(file), "keep_detail_days": "14"}
    with running_service(database, 0, **settings) as service:
        rules, retention = get(service, RULES), get(service, RETENTION)
        off = [r["rule"] for r in rules["rules"] if r["off"]]
        assert off == [
            "clip.after_step",
            "clip.before_division",
            "clip.local_norm",
            "clip.always_engaged",
        ]
        assert rules["off_set_in"] == str(file)
        (spike,) = [rule for rule in rules["rules"] if rule["rule"] == "norm.spike"]
        places = {t["name"]: (t["value"], t["set_in"]) for t in spike["thresholds"]}
        assert places["z"] == (5.0, str(file)) and places["least"] == (2.0, None)
        assert retention["keep_steps_days"] == {
            "value": 90.0,
            "default": 365.0,
            "set_in": str(file),
        }
        assert retention["keep_detail_days"]["set_in"] == "GRADLEDGER_KEEP_DETAIL_DAYS"
        for path, body in (
            (RULES, {"off": []}),
            (RULES, {"thresholds": {"norm.spike": {"z": 7}}}),
            (RETENTION, {"keep_steps_days": 1}),
        ):
            answer = put(service, path, **body)
            assert answer.status_code == 409 and str(file) in answer.json()["detail"]
        page = http.get(f"{service.url}/settings").text
        assert 'name="norm.spike.least"' in page and 'name="norm.spike.z"' not in page
        assert 'value="off"' not in page and f"set in <code>{file}</code>" in page
        # the stored values apply again once the operator no longer sets any
        assert put(service, RULES, thresholds={}).status_code == 200
        lines = configured(database, tmp_path, **settings)
    assert f'GRADLEDGER_RULES_OFF=["clip.*"]  ({file})' in lines
    assert f'GRADLEDGER_THRESHOLDS={{"norm.spike": {{"z": 5.0}}}}  ({file})' in lines
    assert "GRADLEDGER_KEEP_DETAIL_DAYS=14.0  (GRADLEDGER_KEEP_DETAIL_DAYS)" in lines
    lines = configured(database, tmp_path)
    assert f'GRADLEDGER_RULES_OFF=["{UNEQUAL}"]  (the database)' in lines
    assert 'GRADLEDGER_THRESHOLDS={"norm.spike": {"z": 6.0}}  (the database)' in lines
    assert "GRADLEDGER_KEEP_STEPS_DAYS=70.0  (the database)" in lines


def configured(database: str, home: Path, **settings: str) -> list[str]:
    """The output of `gradledger config` for a database."""
    named = {f"GRADLEDGER_{name.upper()}": value for name, value in settings.items()}
    env = {**os.environ, "HOME": str(home), "GRADLEDGER_DB": database, **named}
    done = gradledger("config", environment=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_thresholds_from_two_sources_are_listed_by_source(database: str, tmp_path: Path) -> None:
    with running_service(database) as service:
        put(service, RULES, thresholds={"norm.spike": {"least": 2}})
    lines = configured(database, tmp_path, thresholds='{"norm.spike": {"z": 5}}')
    where = "the database: norm.spike.least; GRADLEDGER_THRESHOLDS: norm.spike.z"
    assert [line for line in lines if line.endswith(f"({where})")]


def test_without_its_database_the_configuration_is_still_printed(tmp_path: Path) -> None:
    nowhere = "postgresql+psycopg://me:hidden@127.0.0.1:1/none"
    lines = configured(nowhere, tmp_path)
    assert lines[0].startswith("# the settings in the database cannot be read")
    assert "GRADLEDGER_RULES_OFF=[]  (default)" in lines and "hidden" not in "".join(lines)
    assert configured(f"sqlite:///{tmp_path / 'none.db'}", tmp_path)[0].endswith("(default)")
    assert not (tmp_path / "none.db").exists()


def test_overrides_of_a_newer_version_are_ignored(store: Store) -> None:
    thresholds = {"norm.new": {"a": 1}, "norm.spike": {"z": 6, "new": 1}}
    newer = {"off": ["norm.spike", "norm.new"], "thresholds": thresholds}
    overrides.write(store, overrides.RULES, newer, 0.0, None)
    choices = RuntimeOverrides(Settings.model_construct(), store).rule_overrides()
    assert choices == RuleOverrides(("norm.spike",), {"norm.spike": {"z": 6}})


# ---------------------------------------------------------------- authorization


def test_only_an_admin_can_change_overrides_and_no_other_site(tmp_path: Path) -> None:
    with guarded_service(tmp_path) as guarded:
        reader = guarded.token("read")
        for path in (RULES, RETENTION):
            assert guarded.get(path, reader).status_code == 200
            assert guarded.ask("PUT", path, reader, json={}).status_code == 403
            form = path.replace("/api/v1", "")
            assert guarded.ask("POST", form, reader, data={}).status_code == 403
            foreign = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
            answer = guarded.ask("POST", form, ADMIN, data={}, headers=foreign)
            assert answer.status_code == 403
        shown = guarded.get("/settings", reader).text
        assert "Save the rules" not in shown and "norm.spike" in shown
        assert guarded.get(RULES, reader).json()["revision"] == 0


# ---------------------------------------------------------------- retention


def test_the_next_retention_pass_uses_the_new_retention(services: list[Service]) -> None:
    service = services[0]
    verdict_after(service, 1, 50)
    service.post(batch("r", [EndRecord(2_000.0, [50])]))
    with closing(Store(service.database)) as store:  # a finished run keeps a snapshot
        assert eventually(HANGS, lambda: maintenance.rows(store)["snapshots"] == 1)
    vacuum = "db", "vacuum", "--db", service.database
    assert "deleted 0 records" in gradledger(*vacuum).stdout
    put(service, RETENTION, keep_detail_days=1e-9)
    output = gradledger(*vacuum).stdout
    assert "deleted 38 records" in output, output  # all but five around the first and the last


def test_the_service_reads_the_retention_for_every_pass(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradledger_monitor.workers.retention.EVERY_SECONDS", 0.05)
    send(store, map(step, range(1, 51)))
    Evaluator(store).evaluate_pending()
    worker = RetentionWorker(store, RuntimeOverrides(Settings.model_construct(), store))
    worker.start()
    try:
        overrides.write(store, overrides.RETENTION, {"keep_detail_days": 1e-9}, 0.0, None)
        assert eventually(HANGS, lambda: not step_records(store, "r", 0, 25))
    finally:
        worker.stop()


def test_a_run_with_pruned_records_is_evaluated_with_the_overrides_from_then_on(
    store: Store,
) -> None:
    send(store, map(step, range(1, 51)))
    Evaluator(store).evaluate_pending()
    run_retention(store, RetentionPolicy(1e-9, 0), RuleOverrides())
    with store.reading() as connection:
        assert (
            connection.scalar(tables.progress.select().with_only_columns(tables.progress.c.pruned))
            == 50
        )
    send(store, map(step, range(51, 61)))
    Evaluator(
        store, overrides=lambda: RuleOverrides(thresholds={UNEQUAL: {"error": 0.9}})
    ).evaluate_pending()
    (finding,) = evaluation(store, "r").findings
    assert (finding.severity, finding.first_step, finding.steps) == ("warning", 1, 60)
    send(store, map(step, range(61, 71)))
    Evaluator(store, overrides=lambda: RuleOverrides(off=(UNEQUAL,))).evaluate_pending()
    assert evaluation(store, "r").findings == []
