"""The result of an evaluation, from the outcomes of its rules: findings, tree, verdict (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from gradledger_monitor.evaluation.decision_tree import build_tree, verdict_of
from gradledger_monitor.evaluation.rule_outcomes import RuleOutcomes, stronger
from gradledger_monitor.model.findings import (
    SEVERITIES,
    Doubt,
    EvaluationResult,
    Finding,
    Outcome,
)
from gradledger_monitor.model.step_facts import RunInfo
from gradledger_monitor.rules import docs, framework_fixes
from gradledger_monitor.rules.definition import RuleDefinition
from gradledger_monitor.rules.overrides import RuleOverrides

SHOWN_BY = 8  # steps by which a cause is reported, where it began with its symptom


def evaluation_result(
    outcomes: Sequence[RuleOutcomes],
    rules: Iterable[type[RuleDefinition]],
    overrides: RuleOverrides,
    run: RunInfo,
) -> EvaluationResult:
    """The result of some rules, of which ``outcomes`` has those on all optimizers."""
    by_id = {rule.id(): rule for rule in rules}
    findings = [finding for each in outcomes if (finding := each.finding()) is not None]
    pages = docs.rules_by_id()
    of_page = {rule: docs.fix(pages[rule]) for f in findings if (rule := f.rule) in pages}
    findings = [
        replace(f, fix=framework_fixes.fix(run, f.rule, f.fix, of_page.get(f.rule, "")))
        for f in findings
    ]
    findings = by_importance(inhibit(findings, by_id))
    coverage = strongest_outcomes(outcomes, run)
    required = {i for i, rule in by_id.items() if rule.kind == "S" and not rule.secondary}
    past = _resolved(findings, by_id)
    tree = build_tree(_answers(coverage, outcomes, by_id), required, past)
    severities = [f.severity for f in findings if counts(f, by_id.get(f.rule))]
    texts = {
        rule_id: coverage_text(outcome, by_id.get(rule_id), overrides)
        for rule_id, outcome in coverage.items()
    }
    return EvaluationResult(verdict_of(tree, severities), findings, tree, texts)


def inhibit(
    findings: Sequence[Finding], rules: Mapping[str, type[RuleDefinition]]
) -> list[Finding]:
    """The findings, where a root cause inhibits its symptoms: they stay visible, and raise no
    alert. ``rules`` are in the order of the catalogue."""
    order = {rule_id: position for position, rule_id in enumerate(rules)}
    return [replace(f, inhibited_by=_cause_of(f, findings, rules, order)) for f in findings]


def _cause_of(
    symptom: Finding,
    findings: Sequence[Finding],
    rules: Mapping[str, type[RuleDefinition]],
    order: Mapping[str, int],
) -> str | None:
    causes = set()
    for cause in findings:
        rule = rules.get(cause.rule)
        if rule is None or cause.rule == symptom.rule:
            continue
        if (_matches(symptom.rule, rule.inhibits) and not _is_apart(cause, symptom)) or (
            _inhibits_later(rule, cause, symptom) and _precedes(cause, symptom, order)
        ):
            causes.add(cause.rule)
    return min(causes, default=None)


def _inhibits_later(rule: type[RuleDefinition], cause: Finding, symptom: Finding) -> bool:
    """Whether a finding of the rule explains this one, if it began before it."""
    under = rule.inhibits_later_under in ("", cause.evidence.get("wrapper"))
    return under and _matches(symptom.rule, rule.inhibits_later)


def _is_apart(cause: Finding, symptom: Finding) -> bool:
    """Whether a finding began well before what may cause it, and went on after it, or was over."""
    changed = cause.evidence.get("changed")
    onset = changed.get("step", 0) if isinstance(changed, dict) else 0
    if symptom.last_step + SHOWN_BY < onset:
        return True
    before = symptom.first_step + SHOWN_BY < cause.first_step
    return before and symptom.last_step > cause.last_step and symptom.steps >= cause.steps


def _precedes(cause: Finding, symptom: Finding, order: Mapping[str, int]) -> bool:
    """Whether a finding began before another one, which is not more severe."""
    if SEVERITIES.index(cause.severity) < SEVERITIES.index(symptom.severity):
        return False
    first = len(order)
    began = (cause.first_step, order.get(cause.rule, first))
    return began < (symptom.first_step, order.get(symptom.rule, first))


def _matches(rule_id: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(rule_id, pattern) for pattern in patterns)


def by_importance(findings: Iterable[Finding]) -> list[Finding]:
    """Root causes before inhibited findings; then by severity, first step and rule."""
    return sorted(findings, key=_importance)


def _importance(finding: Finding) -> tuple[bool, int, int, str]:
    severity = -SEVERITIES.index(finding.severity)
    return finding.inhibited_by is not None, severity, finding.first_step, finding.rule


def counts(finding: Finding, rule: type[RuleDefinition] | None) -> bool:
    """Whether a finding is part of the verdict. A structural mistake remains one after it is
    resolved; a statistical finding that is resolved is history."""
    return finding.inhibited_by is None and not is_history(finding, rule)


def is_history(finding: Finding, rule: type[RuleDefinition] | None) -> bool:
    """Whether a finding is resolved, and no part of the verdict any more."""
    statistical = rule is not None and rule.kind == "T"
    return statistical and finding.lifecycle == "resolved"


def _answers(
    coverage: Mapping[str, Outcome],
    outcomes: Iterable[RuleOutcomes],
    rules: Mapping[str, type[RuleDefinition]],
) -> Mapping[str, Outcome]:
    """What the decision tree states of each rule: a finding of what has passed is an ok."""
    past: dict[str, Outcome] = {}
    current = set()
    for each in outcomes:
        finding = each.finding()
        if finding is None:
            continue
        if is_history(finding, rules.get(each.rule_id)):
            past[each.rule_id] = Outcome("ok", coverage[each.rule_id].reason)
        elif each.has_passed() and finding.severity == "info":
            past[each.rule_id] = Outcome("ok", coverage[each.rule_id].reason or finding.title)
        else:
            current.add(each.rule_id)
    return {**coverage, **{rule: o for rule, o in past.items() if rule not in current}}


def _resolved(
    findings: Iterable[Finding], rules: Mapping[str, type[RuleDefinition]]
) -> Mapping[str, str]:
    """What was, by rule, of findings that are resolved; of symptoms only, nothing."""
    past: dict[str, str] = {}
    for f in findings:  # the most important first, of several optimizers
        if is_history(f, rules.get(f.rule)) and f.inhibited_by is None:
            past.setdefault(f.rule, f"resolved after step {f.last_step:,}: {f.title}")
    return past


def strongest_outcomes(outcomes: Iterable[RuleOutcomes], run: RunInfo) -> dict[str, Outcome]:
    """The strongest outcome of each rule over all optimizers.

    A rule that states what it judged did not measure the run if it judged nothing of an optimizer.
    """
    coverage: dict[str, Outcome] = {}
    unjudged: dict[str, list[str]] = {}
    pairs = [(each, outcome) for each in outcomes if (outcome := each.coverage()) is not None]
    # doubts last: what is ok with another optimizer does not settle them
    for each, outcome in sorted(pairs, key=lambda pair: isinstance(pair[1], Doubt)):
        if outcome.status == "not_measured":
            text = f"{run.optimizer_label(each.optimizer)} is not judged ({outcome.reason})"
            unjudged.setdefault(each.rule_id, []).append(text)
            if isinstance(outcome, Doubt) and len(run.optimizers) > 1:
                outcome = Doubt("not_measured", text)  # it replaces an ok of another optimizer
        coverage[each.rule_id] = stronger(coverage.get(each.rule_id), outcome)
    for rule, texts in unjudged.items():
        strongest = coverage[rule]
        if strongest.status == "ok" and strongest.reason:
            coverage[rule] = Outcome("not_measured", "; ".join([*texts[:3], strongest.reason]))
    return coverage


def coverage_text(
    outcome: Outcome, rule: type[RuleDefinition] | None, overrides: RuleOverrides
) -> str:
    """The status, the reason, and the thresholds that are not the default."""
    applies = rule is not None and outcome.status != "not_applicable"
    thresholds = overrides.changed_thresholds(rule) if rule is not None and applies else ""
    reasons = "; ".join(filter(None, (outcome.reason, thresholds)))
    return f"{outcome.status}: {reasons}" if reasons else outcome.status
