"""Runs retention every hour: saves snapshots of old runs, then removes what is old enough."""

from __future__ import annotations

import logging
import threading

from gradledger_monitor.common import clock
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.admin import retention
from gradledger_monitor.store.admin.retention import RemovedRows, RetentionPolicy
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.evaluation.claims import claims_for
from gradledger_monitor.store.failures import log_failure
from gradledger_monitor.workers.evaluator import Evaluator
from gradledger_monitor.workers.runtime_overrides import RuntimeOverrides

log = logging.getLogger(__name__)

EVERY_SECONDS = 3_600.0
RETENTION_CLAIM = 0  # claimed like a run; no run has this key


def run_retention(store: Store, policy: RetentionPolicy, overrides: RuleOverrides) -> RemovedRows:
    """Remove what is older than the policy allows, unless another process is doing so."""
    claims = claims_for(store)
    try:
        if not claims.acquire(RETENTION_CLAIM):
            return RemovedRows()
        evaluator = Evaluator(store, overrides=lambda: overrides)
        for run in retention.runs_without_snapshot(store, policy, clock.now()):
            _save_snapshot(evaluator, run)
        return retention.prune(store, policy, clock.now())
    finally:
        claims.release_all()


def _save_snapshot(evaluator: Evaluator, run: str) -> None:
    try:
        evaluator.save_snapshot(run)
    except Exception:  # a run that cannot be evaluated must not stop retention of the others
        log.exception("run %s: its state could not be saved, so its records are kept", run)


class RetentionWorker:
    """Runs retention every hour in a thread."""

    def __init__(self, store: Store, overrides: RuntimeOverrides) -> None:
        self._store, self._overrides = store, overrides
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="gradledger-retention", daemon=True)

    def start(self) -> None:
        """Start the thread. It runs for the first time after an hour."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the work in progress."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while not self._stopping.wait(EVERY_SECONDS):
            try:
                policy, rules = self._overrides.policy(), self._overrides.rule_overrides()
                removed = run_retention(self._store, policy, rules)
                log.info("retention removed %d records, %d steps", removed.records, removed.steps)
            except Exception as error:  # the database may be unreachable for a while
                log_failure(log, error, "retention failed and is tried again in an hour")
