"""What a service does now and then: gives up what is older than the policy keeps."""

from __future__ import annotations

import logging
import threading

from gradledger_monitor.common import clock
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.admin import retention
from gradledger_monitor.store.admin.retention import Policy, RemovedRows
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.evaluation.claims import claims_for
from gradledger_monitor.workers.evaluator import Evaluator
from gradledger_monitor.workers.runtime_overrides import RuntimeOverrides

log = logging.getLogger(__name__)

EVERY_SECONDS = 3_600.0
THE_HOUSE = 0  # claimed like a run; no run has this key


def run_retention(store: Store, policy: Policy, choices: RuleOverrides) -> RemovedRows:
    """Do it now, unless another process is at it."""
    claims = claims_for(store)
    try:
        if not claims.acquire(THE_HOUSE):
            return RemovedRows()
        evaluator = Evaluator(store, overrides=lambda: choices)
        for run in retention.runs_without_snapshot(store, policy, clock.now()):
            _keep(evaluator, run)
        return retention.prune(store, policy, clock.now())
    finally:
        claims.release_all()


def _keep(evaluator: Evaluator, run: str) -> None:
    try:
        evaluator.save_snapshot(run)
    except Exception:  # one run that cannot be evaluated must not keep the records of all others
        log.exception("run %s: its state could not be saved, so its records stay", run)


class RetentionWorker:
    """Does it every hour, in a thread."""

    def __init__(self, store: Store, chosen: RuntimeOverrides) -> None:
        self._store, self._chosen = store, chosen
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="gradledger-house", daemon=True)

    def start(self) -> None:
        """Begin; the first time comes after an hour."""
        self._thread.start()

    def stop(self) -> None:
        """End; what is at hand is finished."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while not self._ending.wait(EVERY_SECONDS):
            try:
                policy, choices = self._chosen.policy(), self._chosen.rule_overrides()
                removed = run_retention(self._store, policy, choices)
                log.info("given up: %s records, %s steps", removed.records, removed.steps)
            except Exception:  # the database may be away for a while
                log.exception("nothing could be given up; it is tried again in an hour")
