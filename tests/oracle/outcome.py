"""Compares the answer of gradledger for a program with the right one (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gradledger_monitor.evaluation.decision_tree import QUESTIONS
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.model.step_facts import StepFacts
from oracle.expectation import Expectation
from oracle.program import Program
from oracle.truth import TrueStep, Truth

Kind = Literal["right", "either", "missed", "accused", "untrue", "not_measured", "failed"]
KINDS: tuple[Kind, ...] = (
    "right",
    "either",
    "missed",
    "accused",
    "untrue",
    "not_measured",
    "failed",
)
WRONG_KINDS = ("missed", "accused", "untrue", "failed")

_STRUCTURAL = {question.node for question in QUESTIONS if question.structural}
SEVERE = ("warning", "error")
EXACT = 1e-3  # DESIGN section 2
EXACT_IN_HALF = 3e-2


@dataclass(frozen=True)
class Outcome:
    """One program: the kind of its outcome, and why in one line."""

    program: Program
    kind: Kind
    why: str
    verdict: str
    findings: tuple[str, ...]


def outcome(
    program: Program,
    truth: Truth,
    expected: Expectation,
    facts: Sequence[StepFacts],
    evaluation: EvaluationResult,
) -> Outcome:
    """The comparison."""
    causes = [f for f in evaluation.findings if f.inhibited_by is None and f.severity in SEVERE]
    named = tuple(sorted({finding.rule for finding in causes}))

    def of(kind: Kind, why: str) -> Outcome:
        return Outcome(program, kind, why, evaluation.verdict, named)

    if expected.unknown:
        return of("either", expected.unknown)
    expected_text = "; ".join(expected.reasons)
    wrong = set(named) - expected.allowed
    if wrong:
        return of("accused", f"{', '.join(sorted(wrong))} [{expected_text or 'a right program'}]")
    untrue = _miscounted(program, truth, facts)
    untrue = untrue or ("" if program.mistakes else _untrue(program, truth, facts))
    if untrue:
        return of("untrue", untrue)
    if expected.required and not expected.required & set(named):
        wanted = f"{' or '.join(sorted(expected.required))} [{expected_text}]"
        reason = _not_measured(evaluation, expected)
        if reason and expected.hidden:
            return of("right", "")
        return of("not_measured", f"{reason} [{wanted}]") if reason else of("missed", wanted)
    if not expected.required and evaluation.verdict == "incomplete" and not expected.hidden:
        unclear = [
            node.reason
            for node in evaluation.tree
            if node.node in _STRUCTURAL and node.status == "not_measured"
        ]
        return of("not_measured", "; ".join(unclear))
    return of("right", "")


def _not_measured(evaluation: EvaluationResult, expected: Expectation) -> str:
    """Why none of the required rules could be evaluated, if so."""
    states = [evaluation.coverage.get(rule, "") for rule in sorted(expected.required)]
    unmeasured = [state for state in states if state.startswith("not_measured")]
    return unmeasured[0] if unmeasured else ""


def _miscounted(program: Program, truth: Truth, facts: Sequence[StepFacts]) -> str:
    """A number of synchronisations that differs from the truth, if so."""
    if not program.ddp:
        return ""
    records = [f.record for f in facts if f.optimizer == facts[0].optimizer]
    counted = sum(bool(m.collectives) for record in records for m in record.micro_batches)
    if counted == truth.synchronisations:
        return ""
    return f"{counted} synchronisations, truly {truth.synchronisations}"


def _untrue(program: Program, truth: Truth, facts: Sequence[StepFacts]) -> str:
    """A ledger that differs from the truth in a number, if there is one."""
    tolerance = EXACT_IN_HALF if program.in_half else EXACT
    for fact, step in _with_truth(program, facts, truth):
        account = step.accounts.get(program.objective)
        if fact.ledger is None or account is None or _in_other_unit(program, fact):
            continue
        if program.normalisation == "terms_never" and fact.micro_batches == 1:
            continue  # there, a term that nothing divides may be the heaviest
        if abs(fact.ledger.balance / account.balance - 1) > tolerance:
            return f"step {fact.step}: B = {fact.ledger.balance:.5g}, truly {account.balance:.5g}"
        if abs(fact.ledger.misallocation - account.misallocation) > tolerance:
            true = account.misallocation
            return f"step {fact.step}: d = {fact.ledger.misallocation:.5f}, truly {true:.5f}"
    return ""


def _in_other_unit(program: Program, fact: StepFacts) -> bool:
    """Whether a loss is read in tokens or utterances, over which its mean may be intended, too."""
    reading = fact.objective.reading if fact.objective is not None else None
    weighted = program.objective in ("class_weights", "ctc_letters")
    return weighted and reading is not None and reading.unit == "tokens"


def _with_truth(
    program: Program, facts: Sequence[StepFacts], truth: Truth
) -> Iterator[tuple[StepFacts, TrueStep]]:
    """The facts of each step of each optimizer of the net, with its truth."""
    steps = defaultdict[int, Iterator[TrueStep]](lambda: iter(truth.true_steps))
    for fact in facts:
        if fact.optimizer_name != "RMSprop" and not fact.record.skipped and not fact.record.empty:
            step = next(steps[fact.optimizer], None)
            if step is not None:
                yield fact, step
