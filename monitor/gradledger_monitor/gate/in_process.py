"""Check a training in this process: the implementation of the pytest fixture."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gradledger import api, session
from gradledger.settings import EVERY_STEP, NO_SPOOL
from gradledger_monitor.evaluation.merge import merge_results
from gradledger_monitor.gate.checked_runs import checked_run
from gradledger_monitor.gate.private_service import private_service
from gradledger_monitor.gate.result import CheckedRun, Gate
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.reports.terminal import console
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.runs import queries

MOST_RUNS = 1_000


def assert_balanced(
    train: Callable[[], object],
    *,
    fail_on: str = "warning",
    allow: Sequence[str] = (),
    allow_incomplete: bool = False,
    **watch_arguments: Any,
) -> EvaluationResult:
    """Train with the hooks on; raise AssertionError with the report if the check fails.

    ``fail_on`` is the minimum severity that fails; ``allow`` disables rules by pattern
    (``clip.*``). An incomplete verdict fails too, unless ``allow_incomplete``. Further arguments go
    to ``gradledger.watch``: ``contract=``, or ``optimizer=`` if the optimizer exists already.
    Raises ValueError if a pattern matches no rule, and RuntimeError if a ledger is open in this
    process.
    """
    __tracebackhide__ = True  # pytest shows the test that calls it
    overrides = RuleOverrides(off=tuple(allow))
    overrides.check(rules_by_id())
    runs = _trained_and_evaluated(train, overrides, watch_arguments)
    result = merge_results([run.evaluation for run in runs])
    problems = [f.rule for f in result.findings if Gate(fail_on).fails(f)]
    if not runs:
        problems = ["no optimizer step was recorded"]
    elif result.verdict == "incomplete" and not allow_incomplete:
        problems.append("a required check was not measured (allow_incomplete=True accepts that)")
    if problems:
        raise AssertionError(f"{', '.join(problems)}\n{_report(runs)}")
    return result


def _trained_and_evaluated(
    train: Callable[[], object], overrides: RuleOverrides, watch_arguments: dict[str, Any]
) -> list[CheckedRun]:
    if session.current() is not None:
        raise RuntimeError("gradledger watches this process already: close that ledger first")
    with private_service(overrides) as service:
        defaults = {"on_finding": "off", "overhead": EVERY_STEP}
        with (
            _without_environment(),
            api.watch(**{**defaults, **watch_arguments, "url": service.url}),
        ):
            train()
        service.evaluate_all()
        return [
            checked_run(service.store, run)
            for run in queries.list_runs(service.store, MOST_RUNS)
            if run.steps
        ]


@contextmanager
def _without_environment() -> Iterator[None]:
    """Without the GRADLEDGER_* variables, which configure another service, and without a spool."""
    before = {k: v for k, v in os.environ.items() if k.startswith("GRADLEDGER_")}
    for name in before:
        del os.environ[name]
    os.environ["GRADLEDGER_SPOOL"] = NO_SPOOL
    try:
        yield
    finally:
        del os.environ["GRADLEDGER_SPOOL"]
        os.environ.update(before)


def _report(runs: Sequence[CheckedRun]) -> str:
    stream = io.StringIO()
    output = console(stream)
    for run in runs:
        output.print(run.report(), crop=False)  # no line of a diff is cut
    return stream.getvalue()
