"""Every fix with code that a finding can show has a program that proves it, or is listed as none.

The programs run in ``tests/museum/fixes`` and ``tests/frameworks``.
"""

from __future__ import annotations

from typing import Any

import pytest

from gradledger_monitor.model.step_facts import RunInfo, StepFacts
from gradledger_monitor.rules import framework_fixes
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.rules.framework_fixes import has_code
from gradledger_monitor.rules.loop import double_step, zeroed_before_step
from gradledger_monitor.rules.reduction import fixes
from helpers.facts import facts, record, term
from museum.fixes import table

FIXES = table.fixes()
TABLES = {
    name: fix for name, fix in vars(fixes).items() if isinstance(fix, dict) and name.isupper()
}
FRAMEWORKS = ("accelerate", "fabric", "lightning", "transformers")
WRAPPERS = ("", "ddp", "fsdp2")
IDIOMS = [(framework, wrapper) for framework in ("plain", *FRAMEWORKS) for wrapper in WRAPPERS]
# Where a loss may be divided in the loops of a framework: part of the names of programs.
PLACES = {
    "transformers": ("_compute_loss_", "_model_", "_training_step_"),
    "lightning": ("_manual_",),
}
PROVED = [
    *table.PLAIN.items(),
    *(
        (f"ranks/{prefix}{name.rpartition('/')[2]}", table.PLAIN[name])
        for name in table.WRAPPED
        for prefix in ("", "fsdp2_")
    ),
    *table.BESIDE_THE_GRADIENT.items(),
    *table.FRAMEWORKS.items(),
    *table.FRAMEWORKS_ON_RANKS.items(),
    *table.FRAMEWORKS_OF_RANKS.items(),
    *table.PIPELINES.items(),
]
PROVED_TEXTS = {FIXES[fix] for _, (_, fix) in PROVED if fix in FIXES}


def idiom_of(program: str) -> tuple[str, str]:
    """The framework and the wrapper of a program, by its name."""
    name = program.rpartition("/")[2]
    if "/" in program:
        on_ranks = "fsdp2" if name.startswith("fsdp2") else "ddp"
        return "plain", on_ranks if program.startswith("ranks") else ""
    prefix = name.partition("_")[0]
    framework = "transformers" if prefix == "trainer" else prefix
    return framework, "ddp" if "_ranks_" in name else ""


def step_of(framework: str, wrapper: str, **environment: str) -> StepFacts:
    sync: dict[str, Any] = {"sync": "averaged", "wrapper": wrapper} if wrapper else {}
    config = {} if framework == "plain" else {"framework": framework}
    ranks = [record([term(10, 1 / 40)] * 4, **sync)] * (2 if wrapper else 1)
    return facts(*ranks, config=config, environment=environment)


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


@pytest.mark.parametrize(("framework", "wrapper"), IDIOMS)
def test_every_fix_of_a_reduction_is_proved_in_each_loop_that_shows_it(
    framework: str, wrapper: str
) -> None:
    loop = fixes.loop(step_of(framework, wrapper))
    shown = [each for each in TABLES if wrapper or not each.startswith("ONE_WORLD_SIZE")]
    for name in (f"{each}[{loop}]" for each in shown if loop in TABLES[each]):
        programs = [
            program
            for program, (_, fix) in PROVED
            if FIXES.get(fix) == FIXES[f"reduction.fixes.{name}"]
            and idiom_of(program) == (framework, wrapper)
        ]
        assert programs, f"{name} has no program of {framework} {wrapper}"


@pytest.mark.parametrize("fix", ["TOKEN_MEAN", "MICRO_BATCH_MEAN", "ONE_DIVISION"])
@pytest.mark.parametrize("framework", PLACES)
@pytest.mark.parametrize("wrapper", ["", "ddp"])
def test_the_programs_have_every_way_to_write_the_loop(
    fix: str, framework: str, wrapper: str
) -> None:
    programs = [
        program
        for program, (_, name) in PROVED
        if name == f"reduction.fixes.{fix}[{framework}]"
        and idiom_of(program) == (framework, wrapper)
    ]
    for way in PLACES[framework] if framework in TABLES[fix] else ():
        assert any(way in program for program in programs), f"{fix}: {way}"


@pytest.mark.parametrize(
    "step",
    [
        step_of("transformers", "", trl="1.16.0"),
        step_of("plain", "", deepspeed="0.18.0"),
        *(step_of(framework, "fsdp2") for framework in FRAMEWORKS),
    ],
)
def test_a_loop_without_programs_gets_words(step: StepFacts) -> None:
    assert fixes.loop(step) == "unproved"
    assert not any("unproved" in by_loop for by_loop in TABLES.values())
    assert not has_code(fixes.SUM_OVER_WINDOW)


@pytest.mark.parametrize("rule", rules_by_id())
@pytest.mark.parametrize("framework", [*FRAMEWORKS, "trl"])
def test_no_code_of_another_loop_is_shown_in_that_of_a_framework(rule: str, framework: str) -> None:
    """Of any family of rules: what a program of the framework does not prove is shown in words."""
    if not rule.startswith(("clip.", "ddp.", "loop.", "scaler.", "scheduler.")):
        return
    name = "transformers" if framework == "trl" else framework
    environment = {"trl": "1.16.0"} if framework == "trl" else {}
    run = RunInfo("r", "n", config={"framework": name}, environment=environment)
    text = framework_fixes.fix(run, rule, zeroed_before_step.FIX)
    proofs = {fix for _, (_, fix) in PROVED}
    own = f"framework_fixes.FRAMEWORK_FIXES[{rule}][{framework}]"
    assert not has_code(text) or own in proofs or is_listed(own)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_fix_of_a_loop_is_proved_in_the_framework_that_shows_it(framework: str) -> None:
    run = RunInfo("r", "n", config={"framework": framework})
    proofs = {FIXES[fix] for program, (_, fix) in PROVED if idiom_of(program)[0] == framework}
    for name, fix in FIXES.items():
        rule = ".".join(name.split(".")[:2])
        if rule in rules_by_id() and not rule.startswith("reduction.") and not is_listed(name):
            shown = framework_fixes.fix(run, rule, fix)
            assert not has_code(shown) or shown in proofs, name


def test_a_plain_fix_in_the_loop_of_a_framework_is_shown_in_words() -> None:
    def shown(rule: str, text: str, **config: str) -> str:
        return framework_fixes.fix(RunInfo("r", "n", config=dict(config)), rule, text)

    plain = double_step.FIX
    assert shown("loop.double_step", plain) == plain
    in_lightning = shown("loop.double_step", plain, framework="lightning")
    assert not has_code(in_lightning)
    assert shown("loop.double_step", plain, framework="fabric") == plain
    assert not has_code(
        shown("loop.zeroed_before_step", zeroed_before_step.FIX, framework="fabric")
    )
    assert "not with Lightning" in in_lightning
    assert "page" not in in_lightning  # which may show another fix of the rule
    run = RunInfo("r", "n", config={"framework": "lightning"})
    assert "page" in framework_fixes.fix(run, "loop.double_step", plain, plain)
    stated = f"# at the end:\n{plain}\n# Keep the order."
    assert shown("loop.double_step", stated, framework="lightning").startswith(
        "# Keep the order.\n"
    )
    comment = "# Divide by K."
    assert shown("loop.double_step", comment, framework="lightning") == comment
    of_accelerate = framework_fixes.PREPARED
    rule = "loop.step_every_microbatch"
    assert shown(rule, of_accelerate, framework="accelerate") == of_accelerate


def test_a_fix_of_a_trainer_is_shown_in_words_with_trl() -> None:
    rule, config = "loop.zeroed_every_microbatch", {"framework": "transformers"}
    of_trainer = framework_fixes.FRAMEWORK_FIXES[rule]["transformers"]
    trl = RunInfo("r", "n", config=config, environment={"trl": "1.16.0"})
    assert framework_fixes.fix(RunInfo("r", "n", config=config), rule, "") == of_trainer
    assert not has_code(framework_fixes.fix(trl, rule, ""))
