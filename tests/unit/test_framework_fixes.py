"""Fixes for frameworks: Python code for an existing rule, chosen by the framework of the run."""

from __future__ import annotations

import ast

import pytest

from gradledger_monitor.model.step_facts import RunInfo
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.rules.framework_fixes import FRAMEWORK_FIXES, fix, framework

SNIPPETS = [(rule, name, code) for rule, by in FRAMEWORK_FIXES.items() for name, code in by.items()]


@pytest.mark.parametrize(("rule", "name", "code"), SNIPPETS)
def test_every_idiom_is_python_for_a_rule_that_exists(rule: str, name: str, code: str) -> None:
    assert rule in rules_by_id()
    assert name in ("transformers", "accelerate", "lightning")
    ast.parse("def f():\n" + "\n".join(f"    {line}" for line in code.splitlines()))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (RunInfo("r", "n"), "plain"),
        (RunInfo("r", "n", config={"framework": "lightning"}), "lightning"),
        (RunInfo("r", "n", environment={"accelerate": "1.15.0"}), "accelerate"),
        # transformers imports accelerate; only the Trainer's callback shows that it runs the loop
        (RunInfo("r", "n", environment={"accelerate": "1", "transformers": "5"}), "plain"),
    ],
)
def test_the_framework_is_the_one_whose_loop_it_is(run: RunInfo, expected: str) -> None:
    assert framework(run) == expected


def test_a_rule_without_an_idiom_keeps_its_own_fix() -> None:
    run = RunInfo("r", "n", config={"framework": "lightning"})
    assert fix(run, "loop.double_step", "once") == "once"
    assert "automatic_optimization" in fix(run, "reduction.token_weights_unequal", "plain")
