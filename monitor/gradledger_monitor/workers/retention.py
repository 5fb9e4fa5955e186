"""What a service does now and then: gives up what is older than the policy keeps."""

from __future__ import annotations

import logging
import threading

from gradledger_monitor.common import clock
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.admin import retention
from gradledger_monitor.store.admin.retention import Policy, Removed
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.evaluation.claims import claims_on
from gradledger_monitor.workers.evaluator import Evaluator
from gradledger_monitor.workers.runtime_overrides import RuntimeOverrides

log = logging.getLogger(__name__)

EVERY_SECONDS = 3_600.0
THE_HOUSE = 0  # claimed like a run; no run has this key


def keep_house(store: Store, policy: Policy, choices: RuleOverrides) -> Removed:
    """Do it now, unless another process is at it."""
    claims = claims_on(store)
    try:
        if not claims.take(THE_HOUSE):
            return Removed()
        evaluator = Evaluator(store, chosen=lambda: choices)
        for run in retention.unkept(store, policy, clock.now()):
            _keep(evaluator, run)
        return retention.retain(store, policy, clock.now())
    finally:
        claims.give_back()


def _keep(evaluator: Evaluator, run: str) -> None:
    try:
        evaluator.keep(run)
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
                policy, choices = self._chosen.policy(), self._chosen.choices()
                removed = keep_house(self._store, policy, choices)
                log.info("given up: %s records, %s steps", removed.records, removed.steps)
            except Exception:  # the database may be away for a while
                log.exception("nothing could be given up; it is tried again in an hour")
