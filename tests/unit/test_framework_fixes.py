"""Fixes: Python code for an existing rule, chosen by the loop, the ranks and the kind of loss."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from gradledger.records import Event, Samples
from gradledger_monitor.model.step_facts import RunInfo
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.rules.framework_fixes import FRAMEWORK_FIXES, fix, framework, with_optimizer
from gradledger_monitor.rules.reduction import fixes
from gradledger_monitor.rules.reduction.double_division import FIX_OF_GRADIENTS
from helpers.facts import facts, judged, record, term

SNIPPETS = [(rule, name, code) for rule, by in FRAMEWORK_FIXES.items() for name, code in by.items()]
REDUCTIONS = [
    (loop, code)
    for by_loop in vars(fixes).values()
    if isinstance(by_loop, dict) and "plain" in by_loop
    for loop, code in by_loop.items()
]
ACCELERATE = {"accelerate": "1.15.0"}
BOTH = {**ACCELERATE, "transformers": "5.23.0"}


@pytest.mark.parametrize(("rule", "name", "code"), SNIPPETS)
def test_every_idiom_is_python_for_a_rule_that_exists(rule: str, name: str, code: str) -> None:
    assert rule in rules_by_id()
    assert name in ("transformers", "accelerate", "fabric", "lightning")
    ast.parse("def f():\n" + "\n".join(f"    {line}" for line in [*code.splitlines(), "pass"]))


@pytest.mark.parametrize(("loop", "code"), REDUCTIONS)
def test_every_fix_of_a_reduction_is_python(loop: str, code: str) -> None:
    ast.parse("def f():\n" + "\n".join(f"    {line}" for line in code.splitlines()))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (RunInfo("r", "n"), "plain"),
        (RunInfo("r", "n", config={"framework": "lightning"}), "lightning"),
        (RunInfo("r", "n", environment={"lightning": "2", "lightning_fabric": "in use"}), "fabric"),
        (RunInfo("r", "n", environment=ACCELERATE), "accelerate"),
        (RunInfo("r", "n", environment={**BOTH, "Accelerator": "in use"}), "accelerate"),
        # transformers imports accelerate; only the Trainer's callback shows that it runs the loop
        (RunInfo("r", "n", environment=BOTH), "plain"),
    ],
)
def test_the_framework_is_the_one_whose_loop_it_is(run: RunInfo, expected: str) -> None:
    assert framework(run) == expected


def test_a_rule_without_an_idiom_keeps_its_own_fix() -> None:
    run = RunInfo("r", "n", config={"framework": "lightning"})
    assert fix(run, "norm.spike", "once") == "once"
    assert "unscales" in fix(run, "scaler.clip_before_unscale", "plain")


def shown(run: dict[str, Any], kind: str = "NllLossBackward0", ranks: int = 1, **more: Any) -> str:
    """The fix for a mean of unequal micro-batches."""
    means = [term(10, 1 / 20, kind=kind), term(2, 1 / 4, kind=kind)]
    steps = [facts(*[record(means, **more)] * ranks, **run)]
    findings = judged(steps).findings
    return next(f.fix for f in findings if f.rule == "reduction.token_weights_unequal")


def test_a_fix_fits_the_loop_and_the_ranks() -> None:
    assert shown({}) == fixes.TOKEN_MEAN["plain"]
    assert shown({"environment": ACCELERATE}) == fixes.TOKEN_MEAN["accelerate"]
    assert shown({}, ranks=2, sync="averaged", wrapper="ddp") == fixes.TOKEN_MEAN["ranks"]
    trainer = {"config": {"framework": "transformers"}}
    assert shown(trainer) == fixes.TOKEN_MEAN["transformers"]
    words = fixes.SUM_OVER_WINDOW + fixes.NOTE_TRAINER
    assert shown(trainer, ranks=2, sync="averaged") == words
    assert shown({**trainer, "environment": {"trl": "1.16.0"}}) == words
    several = shown({"environment": ACCELERATE}, ranks=2, sync="averaged")
    assert several == fixes.SUM_OVER_WINDOW
    ddp: dict[str, Any] = {"ranks": 2, "sync": "averaged", "wrapper": "ddp"}
    assert shown(trainer, **ddp) == fixes.TOKEN_MEAN["transformers"]
    assert shown({"environment": ACCELERATE}, **ddp) == fixes.TOKEN_MEAN["accelerate"]
    lightning = {"config": {"framework": "lightning"}}
    assert shown(lightning, **ddp) == fixes.TOKEN_MEAN["lightning"]
    assert shown(lightning, **{**ddp, "wrapper": "fsdp2"}) == fixes.SUM_OVER_WINDOW


def test_no_code_of_ddp_is_shown_for_other_ways_to_combine_the_ranks() -> None:
    """FSDP2 with a divide factor of the script, and a loop that sums the gradients itself, where a
    factor R would be one too many."""
    fsdp2: dict[str, Any] = {"ranks": 2, "sync": "averaged", "wrapper": "fsdp2"}
    assert shown({}, **fsdp2) == fixes.TOKEN_MEAN["ranks"]
    assert shown({}, **fsdp2, divisors=[4.0]) == fixes.SUM_OVER_WINDOW
    means = [term(10, 1 / 20), term(2, 1 / 4)]
    left = ([1.0, -2.0, 0.5, 3.0], [0.5, 1.0, 1.5, -1.0])
    summed = [a + b for a, b in zip(*left, strict=True)]
    by_hand: dict[str, Any] = {"post_factor": None, "sync": "unknown", "collectives_after": 1}
    ranks = [record(means, samples=Samples(mine, summed), **by_hand) for mine in left]
    step = facts(*ranks)
    assert step.averaged and fixes.token_mean(step, step.objective) == fixes.SUM_OVER_WINDOW


@pytest.mark.parametrize("changed", [{"valid": 20}, {"of": "NllLossBackward0"}])
def test_no_code_of_a_plain_loss_is_shown_for_one_that_the_loop_masks_or_changes(
    changed: dict[str, Any],
) -> None:
    means = [term(10, 1 / 20, "none", **changed), term(2, 1 / 4, "none", **changed)]
    step = facts(record(means))
    assert fixes.token_mean(step, step.objective) == fixes.SUM_OF_ONE_RANK


def test_the_fix_names_the_divisor_of_accelerate_if_it_may_call_backward() -> None:
    assert shown({"environment": BOTH}) == fixes.TOKEN_MEAN["plain"] + fixes.NOTE_ACCELERATE


def test_a_loss_that_is_divided_is_not_divided_after_backward_again() -> None:
    divided = fixes.TOKEN_MEAN["plain"] + fixes.NOTE_OF_LOOP
    assert shown({}, post_factor=0.5) == divided
    for before, expected in ((1.0, fixes.TOKEN_MEAN["plain"]), (0.25, divided)):
        clip = Event("clip_norm", 2, norm=2.0, limit=1.0, factor=before)
        assert shown({}, post_factor=before / 2, events=[clip]) == expected
    # by Fabric; and in words, for another loss
    fabric = fixes.TOKEN_MEAN["fabric"] + fixes.NOTE_OF_LOOP
    assert shown({"environment": {"lightning_fabric": "in use"}}, post_factor=0.5) == fabric
    words = fixes.SUM_OF_ONE_RANK + fixes.NOTE_OF_LOOP
    assert shown({}, kind="MseLossBackward0", post_factor=0.5) == words


def test_a_mean_by_class_weights_is_fixed_by_their_sum() -> None:
    def of(ranks: int = 1, **more: Any) -> str:
        means = [term(n, 1 / 2 / n, class_weight=w) for n, w in ((10, 14.0), (2, 0.5))]
        run = more.pop("run", {})
        findings = judged([facts(*[record(means, **more)] * ranks, **run)]).findings
        return next(f.fix for f in findings if f.rule == "reduction.token_weights_unequal")

    assert of() == fixes.CLASS_WEIGHTED_MEAN["plain"]
    over_ranks = of(2, sync="averaged", wrapper="ddp")
    assert over_ranks == fixes.CLASS_WEIGHTED_MEAN["ranks"]
    assert of(2, sync="averaged", wrapper="fsdp2") == over_ranks
    assert of(run={"environment": ACCELERATE}) == fixes.SUM_OVER_CLASS_WEIGHTS


def test_a_fix_ignores_the_class_that_the_loss_ignores() -> None:
    def of(*ignored: int | None, run: dict[str, Any] | None = None, class_weights: Any = ()) -> str:
        counts = zip((10, 2), ignored, strict=True)
        means = [term(n, 1 / 2 / n, ignored=label) for n, label in counts]
        for mean, weight in zip(means, class_weights, strict=False):
            mean.class_weight = weight
        findings = judged([facts(record(means), **(run or {}))]).findings
        return next(f.fix for f in findings if f.rule == "reduction.token_weights_unequal")

    padding = of(0, 0)
    assert "(labels != 0).sum()" in padding
    assert 'labels, ignore_index=0, reduction="sum")' in padding
    assert "-100" not in padding
    weighted = of(0, 0, class_weights=(14.0, 0.5))
    assert "labels[labels != 0]" in weighted and "ignore_index=0" in weighted
    assert of(None, None) == fixes.TOKEN_MEAN["plain"]
    assert of(0, 1) == fixes.SUM_OF_ONE_RANK
    trainer = {"config": {"framework": "transformers"}}
    assert of(0, 0, run=trainer) == fixes.SUM_OVER_WINDOW


def test_the_fix_of_one_of_several_losses_leaves_the_others() -> None:
    def of(**more: Any) -> str:
        means = [[term(n, 1 / 2 / n), term(4, 1 / 8, kind="MseLossBackward0")] for n in (10, 2)]
        findings = judged([facts(record(means, **more))]).findings
        return next(f.fix for f in findings if f.rule == "reduction.token_weights_unequal")

    assert of() == fixes.TERM_MEAN["plain"]
    assert "backward" not in of()


@pytest.mark.parametrize("kind", ["CtcLossBackward0", "MseLossBackward0"])
def test_another_loss_gets_no_cross_entropy(kind: str) -> None:
    assert shown({}, kind=kind) == fixes.SUM_OF_ONE_RANK
    assert shown({"environment": ACCELERATE}, kind=kind) == fixes.SUM_OVER_WINDOW


OF_ADAMW = "optimizer = torch.optim.AdamW(model.parameters(), lr=lr)"


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("SGD", "optimizer = torch.optim.SGD(model.parameters(), lr=lr)"),
        ("Lion", "optimizer = Lion(model.parameters(), lr=lr)"),
        ("optimizer", OF_ADAMW),  # the class was not recorded
    ],
)
def test_a_fix_names_the_optimizer_of_the_script(name: str, fix: str) -> None:
    assert with_optimizer(OF_ADAMW, name) == fix


def test_the_fix_of_a_classifier_counts_samples() -> None:
    means = [term(n, 1 / 2 / n, size=n, samples=n) for n in (10, 2)]
    findings = judged([facts(record(means))]).findings
    fix = next(f.fix for f in findings if f.rule == "reduction.token_weights_unequal")
    assert "samples = sum((labels != -100).sum()" in fix
    assert "token" not in fix and "causal" not in fix


@pytest.mark.parametrize(
    ("name", "fix"),
    [("plain", fixes.ONE_DIVISION["plain"]), ("transformers", fixes.DIVIDED_ONCE)],
)
def test_a_division_too_many_is_the_only_one_where_the_window_divides(name: str, fix: str) -> None:
    summed = [term(10, 1 / 40, reduction="sum")] * 2
    steps = [facts(record(summed, n), config={"framework": name}) for n in (1, 2)]
    (finding,) = (f for f in judged(steps).findings if f.rule == "reduction.double_division")
    assert finding.fix == fix
    assert "whole window\n# counts not at all" in fixes.DIVIDED_ONCE


def test_a_division_of_the_gradients_too_many_is_named_as_that() -> None:
    divided = record([term(10, 1 / 40)] * 4, post_factor=1 / 4)
    findings = judged([facts(divided, config={"framework": "lightning"})]).findings
    (finding,) = (f for f in findings if f.rule == "reduction.double_division")
    assert "one division by K too many, of the gradients after backward: " in finding.summary
    assert finding.fix == FIX_OF_GRADIENTS


def test_a_division_too_many_is_by_k_or_by_as_many_ranks() -> None:
    def title(ranks: int) -> str:
        steps = [
            facts(*[record([term(10, 1 / 40)] * 2, n, sync="averaged", wrapper="ddp")] * ranks)
            for n in (1, 2)
        ]
        return next(f.title for f in judged(steps).findings if f.rule.startswith("reduction."))

    assert title(2) == (
        "The gradient is divided by 2 once too often: by K, or by the number of ranks"
    )
    assert title(3) == "The gradient is divided by K = 2 once too often"


@pytest.mark.parametrize(
    ("weight", "k", "fix"),
    [
        (1 / 40, 2, fixes.ONE_OF_BOTH_MORE),
        (1 / 10, 2, fixes.ONE_OF_BOTH_LESS),
        (1 / 60, 3, fixes.ONE_WORLD_SIZE_MORE),
    ],
)
def test_a_factor_of_as_many_ranks_as_micro_batches_may_be_of_either(
    weight: float, k: int, fix: dict[fixes.Loop, str]
) -> None:
    summed = [term(10, weight, reduction="sum")] * k
    steps = [facts(*[record(summed, n, sync="averaged", wrapper="ddp")] * 2) for n in (1, 2)]
    (finding,) = (f for f in judged(steps).findings if f.rule == "reduction.world_size")
    assert finding.fix == fix["ranks"]
    assert ("as many micro-batches as ranks" in finding.summary) == (k == 2)
    assert ("or of K = 2" in finding.title) == (k == 2)


def test_a_constant_of_as_many_ranks_as_micro_batches_is_no_weight_without_a_warning() -> None:
    summed = [term(10, 1 / 10, reduction="sum", coefficient=2.0)] * 2
    steps = [facts(*[record(summed, n, sync="averaged", wrapper="ddp")] * 2) for n in (1, 2)]
    (finding,) = (f for f in judged(steps).findings if f.rule == "reduction.world_size")
    assert finding.title == "The loss is multiplied by 2, which is also the number of ranks"
    assert finding.fix == fixes.ONE_WORLD_SIZE_LESS["ranks"]


@pytest.mark.parametrize("name", ["accelerate", "fabric", "lightning", "transformers"])
def test_a_constant_of_as_many_ranks_leaves_the_proved_division_of_a_framework(name: str) -> None:
    means = [term(10, 2 / 10, coefficient=2.0, undivided=True)] * 4
    config = {"framework": name}
    steps = [
        facts(*[record(means, n, sync="averaged", wrapper="ddp")] * 2, config=config)
        for n in (1, 2)
    ]
    (finding,) = (f for f in judged(steps).findings if f.rule == "reduction.missing_division")
    assert finding.fix == {**fixes.MICRO_BATCH_MEAN}[fixes.loop(steps[0])]
