"""A training of this process watched and judged here: what the pytest fixture calls."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gradledger import api, session
from gradledger.settings import EVERY_STEP, NO_SPOOL
from gradledger_monitor.evaluation.merge import merge_results
from gradledger_monitor.gate.private_service import private_service
from gradledger_monitor.gate.result import Checked, Gate
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.reports.terminal import console, report
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
    **watched: Any,
) -> EvaluationResult:
    """Train with the hooks on, and raise AssertionError with the report if something is wrong.

    ``fail_on`` is the least severity that fails; ``allow`` are rules that are not asked, as
    patterns (``clip.*``). A run of which not everything structural could be seen fails too, unless
    ``allow_incomplete``. What else is given goes to ``gradledger.watch``: ``contract=``, or
    ``optimizer=`` where it was made before. Raises ValueError where a pattern fits no rule, and
    RuntimeError where this process is watched already.
    """
    choices = RuleOverrides(off=tuple(allow))
    choices.check(rules_by_id())
    checked = _judged(train, choices, watched)
    answer = merge_results([one.evaluation for one in checked])
    problems = [f.rule for f in answer.findings if Gate(fail_on).fails(f)]
    if not checked:
        problems = ["no optimizer step was seen"]
    elif answer.verdict == "incomplete" and not allow_incomplete:
        problems.append("not everything could be measured (allow_incomplete=True lets it pass)")
    if problems:
        raise AssertionError(f"{', '.join(problems)}\n{_text(checked)}")
    return answer


def _judged(
    train: Callable[[], object], choices: RuleOverrides, watched: dict[str, Any]
) -> list[Checked]:
    if session.current() is not None:
        raise RuntimeError("this process is watched already; close that ledger first")
    with private_service(choices) as service:
        with (
            _only_here(),
            api.watch(
                **{"on_finding": "off", "overhead": EVERY_STEP, **watched, "url": service.url}
            ),
        ):
            train()
        service.evaluate_all()
        return [
            Checked(r.name, r.steps, r.world_size, queries.evaluation(service.store, r.id))
            for r in queries.list_runs(service.store, MOST_RUNS)
            if r.steps
        ]


@contextmanager
def _only_here() -> Iterator[None]:
    """Without what the environment says about another service."""
    before = {k: v for k, v in os.environ.items() if k.startswith("GRADLEDGER_")}
    for name in before:
        del os.environ[name]
    os.environ["GRADLEDGER_SPOOL"] = NO_SPOOL
    try:
        yield
    finally:
        del os.environ["GRADLEDGER_SPOOL"]
        os.environ.update(before)


def _text(checked: Sequence[Checked]) -> str:
    stream = io.StringIO()
    out = console(stream)
    for one in checked:
        out.print(report(one.name, one.steps, one.ranks, one.evaluation))
    return stream.getvalue()
