"""The findings and the verdict of a run whose first records are pruned, in archives.

The records cannot be evaluated again, so findings and verdict are exported and imported as data.
Anybody may have written the file: the type and the bounds of each value are checked, and the run is
marked, so that an imported verdict is not taken for one of this service.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from sqlalchemy import Connection, delete, insert, select, update

from gradledger_monitor.evaluation.evaluator_version import IMPORTED
from gradledger_monitor.ingest.schema import MAX_OPTIMIZERS, Count, Name
from gradledger_monitor.model.findings import Lifecycle, Severity, Verdict
from gradledger_monitor.store.tables import evaluations, findings, runs

FINDING, EVALUATION = "finding", "evaluation"

Title = Annotated[str, Meta(max_length=1_024, pattern=r"^[^\0]*\Z")]
Text = Annotated[str, Meta(max_length=65_536, pattern=r"^[^\0]*\Z")]


class ArchivedFinding(Struct, frozen=True, forbid_unknown_fields=True):
    """A finding; ``evidence`` is MessagePack, for JSON has no infinity."""

    rule: Name
    optimizer: Annotated[int, Meta(ge=0, lt=MAX_OPTIMIZERS)]
    severity: Severity
    first_step: Count
    last_step: Count
    since_step: Count
    steps: Count
    title: Title
    summary: Text
    fix: Text
    evidence: bytes
    lifecycle: Lifecycle


class ArchivedEvaluation(Struct, frozen=True, forbid_unknown_fields=True):
    """The rest of an evaluation, and the numbers of steps and tokens that it covers."""

    verdict: Verdict
    coverage: Annotated[dict[Name, Text], Meta(max_length=1_024)]
    steps: Count
    tokens: Count


class CarriedEvaluation(Struct, frozen=True):
    """An evaluation with its findings."""

    evaluation: ArchivedEvaluation
    findings: list[dict[str, Any]]  # rows of their table


def dump_rows(connection: Connection, run: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows for an archive."""
    row = connection.execute(select(runs).where(runs.c.key == run)).one()
    coverage = connection.scalar(select(evaluations.c.coverage).where(evaluations.c.run == run))
    evaluation = ArchivedEvaluation(
        verdict=row.verdict, coverage=coverage or {}, steps=row.steps, tokens=row.tokens
    )
    yield EVALUATION, msgspec.to_builtins(evaluation)
    names = set(ArchivedFinding.__struct_fields__) - {"evidence"}
    query = select(findings).where(findings.c.run == run).order_by(findings.c.position)
    for finding in connection.execute(query):
        values = {name: finding._mapping[name] for name in sorted(names)}
        evidence = base64.b64encode(msgspec.msgpack.encode(finding.evidence)).decode()
        yield FINDING, {**values, "evidence": evidence}


def read(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> CarriedEvaluation | None:
    """The evaluation among the rows of an archive; None if there is none.

    Raises ``ValueError`` with the field if a row is not as ``dump_rows`` writes it.
    """
    evaluation: ArchivedEvaluation | None = None
    finding_rows: list[dict[str, Any]] = []
    try:
        for name, values in rows:
            if name == EVALUATION:
                evaluation = msgspec.convert(values, ArchivedEvaluation)
            elif name == FINDING:
                finding = msgspec.convert(values, ArchivedFinding)
                finding_rows.append(_row(finding, len(finding_rows)))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"a row of {name!r} in the archive is not valid: {error}") from error
    _check_unique(finding_rows)
    return None if evaluation is None else CarriedEvaluation(evaluation, finding_rows)


def _check_unique(rows: list[dict[str, Any]]) -> None:
    keys: set[tuple[str, int]] = set()
    for row in rows:
        rule, optimizer = row["rule"], row["optimizer"]
        if (rule, optimizer) in keys:
            raise ValueError(f"the archive has two findings of {rule} on optimizer {optimizer}")
        keys.add((rule, optimizer))


def _row(finding: ArchivedFinding, position: int) -> dict[str, Any]:
    evidence = msgspec.msgpack.decode(finding.evidence, type=dict[str, Any])
    return {**msgspec.structs.asdict(finding), "evidence": evidence, "position": position}


def write(connection: Connection, run: int, carried: CarriedEvaluation) -> None:
    """Store the evaluation of a run of which no step was evaluated here."""
    for table in (evaluations, findings):
        connection.execute(delete(table).where(table.c.run == run))
    evaluation = carried.evaluation
    row: dict[str, Any] = {
        "verdict": evaluation.verdict,
        "tree": [],
        "coverage": evaluation.coverage,
    }
    connection.execute(insert(evaluations).values(run=run, **row))
    if carried.findings:
        rows = [{"run": run, **finding} for finding in carried.findings]
        connection.execute(insert(findings), rows)
    mark(connection, run, evaluation.steps, evaluation.tokens, evaluation.verdict)


def mark(connection: Connection, run: int, steps: int, tokens: int, verdict: Verdict) -> None:
    """Mark a run as evaluated elsewhere in part."""
    values = {"steps": steps, "tokens": tokens, "verdict": verdict, "evaluator": IMPORTED}
    connection.execute(update(runs).where(runs.c.key == run).values(**values, earlier_version=True))
