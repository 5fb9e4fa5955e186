"""A finding as people read it: what a change of words or numbers must show in."""

from __future__ import annotations

from gradledger_monitor.model.findings import Finding


def finding_text(finding: Finding) -> str:
    """Its texts, and the numbers that they are based on."""
    shown = {key: _rounded(value) for key, value in sorted(finding.evidence.items())}
    return (
        f"{finding.severity}: {finding.rule}, steps {finding.first_step} to {finding.last_step}, "
        f"{finding.steps} in all, {finding.lifecycle}\n{finding.title}\n{finding.summary}\n"
        f"{finding.fix}\n{shown}\ninhibited by {finding.inhibited_by}"
    )


def _rounded(value: object) -> object:
    """Six digits of a number, and of those in a list: the last ones are the machine's."""
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
