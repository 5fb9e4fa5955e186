"""The verdict of a run as text, its findings in reading order, and its coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from gradledger_monitor.evaluation.decision_tree import QUESTIONS
from gradledger_monitor.evaluation.result import is_history
from gradledger_monitor.model.findings import SEVERITIES
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_web import formatting

if TYPE_CHECKING:
    from gradledger_monitor.model.findings import EvaluationResult, Finding

WRONG_GRADIENT = "the applied gradient is not the one the loop intends"
GRADIENT_UNAFFECTED = ("scaler.missing_update",)  # a structural error about the scale alone
Absent = Mapping[int, int | None]  # ranks with their last step; 0: none ever, None: not known
NO_RANKS: Absent = MappingProxyType({})
_CHECKS = {
    "loss": "course of the training loss",
    "run": "progress",
    "validation": "validation loss",
    "norm": "course of the gradient norms",
    "scaler": "GradScaler",
    "ddp": "DDP",
}
_REQUIRED = {question.node for question in QUESTIONS if question.structural}


@dataclass(frozen=True)
class Unanswered:
    """Checks that were not measured for one reason; ``required`` for the verdict balanced."""

    checks: str
    reason: str
    required: bool


@dataclass(frozen=True)
class Summary:
    """An evaluation in reading order: one sentence, one more detail, causes, symptoms."""

    sentence: str
    detail: str
    unanswered: list[Unanswered]  # of an incomplete run: why it is
    causes: list[Finding]
    symptoms: list[Finding]


def summarize(
    evaluation: EvaluationResult, steps: int, ranks: int = 1, absent: Absent = NO_RANKS
) -> Summary:
    """Summarize the evaluation of ``steps`` optimizer steps.

    ``absent`` are the ranks without a record of the last one, with the last that they sent.
    """
    ordered = sorted(evaluation.findings, key=_reading_order)
    causes = [finding for finding in ordered if finding.inhibited_by is None]
    symptoms = [finding for finding in ordered if finding.inhibited_by is not None]
    sentence, detail = _sentence_and_detail(evaluation, causes, steps)
    detail = " ".join(filter(None, (detail, formatting.sentence(_extent(ranks, absent)))))
    incomplete = steps > 0 and evaluation.verdict == "incomplete"
    unanswered = list(_unanswered(evaluation)) if incomplete else []
    return Summary(sentence, detail, unanswered, causes, symptoms)


def _acknowledged(causes: list[Finding]) -> str:
    """How many of the warnings and errors a person has acknowledged; empty if none."""
    problems = [finding for finding in causes if finding.severity != "info"]
    number = sum(finding.acknowledged is not None for finding in problems)
    if not number:
        return ""
    return f"Acknowledged: {number} of {formatting.plural(len(problems), 'finding')}."


def _extent(ranks: int, absent: Absent) -> str:
    """Over which ranks a verdict holds, where some sent no record, or none of the last step."""
    if not absent:
        return ""
    present = [rank for rank in range(ranks) if rank not in absent]
    never = [rank for rank, last in absent.items() if last == 0]
    behind = [rank for rank, last in absent.items() if last != 0]
    last_steps = [last for last in absent.values() if last]
    reasons = [f"{formatting.rank_names(never)} never sent a record"] if never else []
    if behind:
        reasons.append(f"{formatting.rank_names(behind)} sent no record of the last step")
    all_known = len(last_steps) == len(absent)
    since = f"after step {formatting.count(min(last_steps))}, " if all_known else ""
    holds = f"{since}this holds for {formatting.rank_names(present)}: " if present else ""
    return f"{holds}{', and '.join(reasons)}."


def _reading_order(finding: Finding) -> tuple[bool, int]:
    return finding.lifecycle == "resolved", -SEVERITIES.index(finding.severity)


def _sentence_and_detail(
    evaluation: EvaluationResult, causes: list[Finding], steps: int
) -> tuple[str, str]:
    if steps == 0:
        return "No optimizer step has been evaluated yet.", "Most checks need one step."
    if causes and evaluation.verdict in ("broken", "suspect"):
        others = len(causes) - 1
        more = f"{formatting.plural(others, 'more finding')} below." if others else ""
        open_checks = ", ".join(_not_measured(evaluation, required=True))
        unclear = f"Not measured: {open_checks}." if open_checks else ""
        return f"{causes[0].title.rstrip('.')}.", " ".join(
            filter(None, (more, _acknowledged(causes), unclear))
        )
    period = formatting.plural(steps, "optimizer step")
    not_measured = _not_measured(evaluation)
    detail = f"Not measured: {', '.join(not_measured)}." if not_measured else ""
    no_problems = _no_problems(evaluation, period)
    if evaluation.verdict == "incomplete":
        sentence = f"{no_problems}, but {_required(evaluation)}."
        return formatting.sentence(sentence), ""
    notes = f"{formatting.plural(len(causes), 'note')} below. " if causes else ""
    return formatting.sentence(f"{no_problems}."), (notes + detail).strip()


def verdict_meaning(
    evaluation: EvaluationResult, steps: int, ranks: int, absent: Absent = NO_RANKS
) -> str:
    """What the verdict means for this run, for the line behind ``BALANCED:``."""
    meaning = _meaning(evaluation, steps, ranks)
    return f"{meaning}; {_extent(ranks, absent).rstrip('.')}" if absent else meaning


def _meaning(evaluation: EvaluationResult, steps: int, ranks: int) -> str:
    extent = formatting.plural(steps, "step")
    if ranks > 1:
        extent += f" on {formatting.plural(ranks, 'rank')}"
    if evaluation.verdict in ("broken", "suspect"):
        problems = _problems(f for f in evaluation.findings if not _is_history(f))
        if _applies_wrong_gradient(evaluation):
            return f"{WRONG_GRADIENT} ({problems} in {extent})"
        return f"{problems} in {extent}"
    no_problems = _no_problems(evaluation, extent)
    if evaluation.verdict == "incomplete":
        names = ", ".join(_not_measured(evaluation, required=True))
        return f"{no_problems}, but {_required(evaluation)}: {names}"
    not_measured = _not_measured(evaluation)
    names = ", ".join(not_measured)
    checks = formatting.plural(len(not_measured), "optional check")
    unclear = f" ({checks} not measured: {names})" if not_measured else ""
    reduction = next((n for n in evaluation.tree if n.node == "reduction"), None)
    evaluated = "" if reduction is None else reduction.reason
    if reduction is not None and reduction.status == "finding":  # information, or acknowledged
        evaluated = f"see {evaluated}"
    return f"{no_problems}{unclear}" + (f"; {evaluated}" if evaluated else "")


def _no_problems(evaluation: EvaluationResult, extent: str) -> str:
    """That nothing is wrong, or that nothing is any more."""
    resolved = _problems(filter(_is_history, evaluation.findings))
    if resolved:
        return f"no problems at the end of {extent}, {resolved} before"
    return f"no problems in {extent}"


def _is_history(finding: Finding) -> bool:
    return is_history(finding, rules_by_id().get(finding.rule))


def _problems(findings: Iterable[Finding]) -> str:
    """``1 error, 2 warnings``: symptoms are not counted."""
    numbers = Counter(f.severity for f in findings if f.inhibited_by is None)
    problems = (("error", numbers["error"]), ("warning", numbers["warning"]))
    return ", ".join(formatting.plural(number, name) for name, number in problems if number)


def _applies_wrong_gradient(evaluation: EvaluationResult) -> bool:
    """Whether an error is structural: the statistical rules watch losses, norms and scales."""
    rules = rules_by_id()
    errors = {f.rule for f in evaluation.findings if f.severity == "error" and not f.inhibited_by}
    structural = {rule for rule in errors if rule in rules and rules[rule].kind == "S"}
    return bool(structural.difference(GRADIENT_UNAFFECTED))


def _not_measured(evaluation: EvaluationResult, required: bool = False) -> list[str]:
    """Questions without an answer; ``required``: only those without which no run is balanced."""
    nodes = [node.node for node in evaluation.tree if node.status == "not_measured"]
    return [_CHECKS.get(n, n) for n in nodes if not required or n in _REQUIRED]


def _required(evaluation: EvaluationResult) -> str:
    """How many questions without an answer keep a run from being balanced."""
    number = len(_not_measured(evaluation, required=True))
    if number > 1:
        return f"{number} required checks were not measured"
    return "a required check was not measured"


def _unanswered(evaluation: EvaluationResult) -> Iterator[Unanswered]:
    """The questions without an answer by reason, the required ones first."""
    names: dict[tuple[bool, str], list[str]] = {}
    for node in evaluation.tree:
        if node.status == "not_measured":
            key = (node.node in _REQUIRED, node.reason)
            names.setdefault(key, []).append(_CHECKS.get(node.node, node.node))
    for (required, reason), checks in sorted(names.items(), key=lambda item: not item[0][0]):
        yield Unanswered(", ".join(checks), reason, required)


@dataclass(frozen=True)
class Coverage:
    """One rule in the coverage panel."""

    rule: str
    status: str
    reason: str


def coverage(evaluation: EvaluationResult) -> list[Coverage]:
    """The status of each rule, with the reason if it was not checked."""
    return [_covered(rule, text) for rule, text in sorted(evaluation.coverage.items())]


def _covered(rule: str, text: str) -> Coverage:
    status, _, reason = text.partition(":")
    return Coverage(rule, status.strip(), reason.strip())


def points_at_code(rule: str) -> bool:
    """Whether the findings of a rule are about lines of the script."""
    return rule in rules_by_id() and bool(rules_by_id()[rule].points_at)


def not_measured_by_reason(covered: Sequence[Coverage]) -> list[tuple[str, list[str]]]:
    """The rules that were not measured, by reason: the reason of the most rules first."""
    rules: dict[str, list[str]] = {}
    for line in covered:
        if line.status == "not_measured":
            rules.setdefault(line.reason, []).append(line.rule)
    return sorted(rules.items(), key=lambda pair: -len(pair[1]))


def tally(covered: list[Coverage]) -> dict[str, int]:
    """The number of rules by status."""
    return dict(Counter(line.status for line in covered))
