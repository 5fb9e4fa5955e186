"""Every fix with code that a finding can show has a program that proves it, or is listed as none.

The programs run in ``tests/museum/fixes`` and ``tests/frameworks``.
"""

from __future__ import annotations

import pytest

from gradledger_monitor.model.step_facts import RunInfo
from gradledger_monitor.rules import framework_fixes
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.rules.loop import double_step
from museum.fixes import table

FIXES = table.fixes()
PROVED = [
    *table.PLAIN.items(),
    *table.BESIDE_THE_GRADIENT.items(),
    *table.FRAMEWORKS.items(),
    *table.FRAMEWORKS_ON_RANKS.items(),
    *table.FRAMEWORKS_OF_RANKS.items(),
    *table.PIPELINES.items(),
]
PROVED_TEXTS = {FIXES[fix] for _, (_, fix) in PROVED if fix in FIXES}


def is_listed(name: str) -> bool:
    return any(f"{name}.".startswith(f"{listed}.") for listed in table.OF_SOMETHING_ELSE)


@pytest.mark.parametrize("name", FIXES)
def test_every_fix_is_proved_or_changes_something_else_than_a_gradient(name: str) -> None:
    assert (FIXES[name] in PROVED_TEXTS) != is_listed(name)


@pytest.mark.parametrize("listed", table.OF_SOMETHING_ELSE)
def test_what_is_listed_exists(listed: str) -> None:
    assert any(f"{name}.".startswith(f"{listed}.") for name in FIXES)


@pytest.mark.parametrize(("program", "proof"), PROVED, ids=[program for program, _ in PROVED])
def test_every_proof_is_of_a_rule_and_a_fix(program: str, proof: tuple[str, str]) -> None:
    rule, fix = proof
    assert rule in rules_by_id()
    assert fix in FIXES


def test_a_plain_fix_in_the_loop_of_a_framework_states_that_it_is_not_tested_there() -> None:
    def shown(rule: str, text: str, **config: str) -> str:
        return framework_fixes.fix(RunInfo("r", "n", config=dict(config)), rule, text)

    plain = double_step.FIX
    assert shown("loop.double_step", plain) == plain
    in_lightning = shown("loop.double_step", plain, framework="lightning")
    note = "# In a loop of plain PyTorch; not tested with Lightning:\n"
    assert in_lightning == f"{note}{plain}"
    comment = "# Divide by K."
    assert shown("loop.double_step", comment, framework="lightning") == comment
    of_accelerate = framework_fixes.PREPARED
    rule = "loop.step_every_microbatch"
    assert shown(rule, of_accelerate, framework="accelerate") == of_accelerate
