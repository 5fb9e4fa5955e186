"""What the rules found in a run whose first records are pruned, out of one database and into
another.

These records cannot be evaluated again, so findings and verdict travel as data. They come from a
file that anybody may have written: each value is checked for its type and bounds, and the run is
marked, so that nobody takes an imported verdict for one that this service reached.
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
    """The rest of a judgement, and of how many steps and tokens it is."""

    verdict: Verdict
    coverage: Annotated[dict[Name, Text], Meta(max_length=1_024)]
    steps: Count
    tokens: Count


class CarriedEvaluation(Struct, frozen=True):
    """A whole judgement."""

    evaluation: ArchivedEvaluation
    findings: list[dict[str, Any]]  # rows of their table


def dump_rows(connection: Connection, run: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of an archive."""
    row = connection.execute(select(runs).where(runs.c.key == run)).one()
    judged = select(evaluations.c.coverage).where(evaluations.c.run == run)
    evaluation = ArchivedEvaluation(
        row.verdict, connection.scalar(judged) or {}, row.steps, row.tokens
    )
    yield EVALUATION, msgspec.to_builtins(evaluation)
    names = set(ArchivedFinding.__struct_fields__) - {"evidence"}
    query = select(findings).where(findings.c.run == run).order_by(findings.c.position)
    for found in connection.execute(query):
        values = {name: found._mapping[name] for name in sorted(names)}
        evidence = base64.b64encode(msgspec.msgpack.encode(found.evidence)).decode()
        yield FINDING, {**values, "evidence": evidence}


def read(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> CarriedEvaluation | None:
    """The judgement among the rows of an archive; None where it has none.

    Raises ValueError, naming the field, where a row is not what ``dumped`` writes.
    """
    evaluation: ArchivedEvaluation | None = None
    found: list[dict[str, Any]] = []
    try:
        for name, values in rows:
            if name == EVALUATION:
                evaluation = msgspec.convert(values, ArchivedEvaluation)
            elif name == FINDING:
                found.append(_row(msgspec.convert(values, ArchivedFinding), len(found)))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"a row of {name!r} in the archive is not valid: {error}") from error
    _check_each_once(found)
    return None if evaluation is None else CarriedEvaluation(evaluation, found)


def _check_each_once(rows: list[dict[str, Any]]) -> None:
    seen: set[tuple[str, int]] = set()
    for row in rows:
        rule, optimizer = row["rule"], row["optimizer"]
        if (rule, optimizer) in seen:
            raise ValueError(f"the archive has two findings of {rule} on optimizer {optimizer}")
        seen.add((rule, optimizer))


def _row(finding: ArchivedFinding, position: int) -> dict[str, Any]:
    evidence = msgspec.msgpack.decode(finding.evidence, type=dict[str, Any])
    return {**msgspec.structs.asdict(finding), "evidence": evidence, "position": position}


def write(connection: Connection, run: int, carried: CarriedEvaluation) -> None:
    """Give a run of which no step was evaluated here its judgement."""
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
        connection.execute(insert(findings), [{"run": run, **found} for found in carried.findings])
    mark(connection, run, evaluation.steps, evaluation.tokens, evaluation.verdict)


def mark(connection: Connection, run: int, steps: int, tokens: int, verdict: Verdict) -> None:
    """Say on a run that part of it was evaluated elsewhere."""
    values = {"steps": steps, "tokens": tokens, "verdict": verdict, "evaluator": IMPORTED}
    connection.execute(update(runs).where(runs.c.key == run).values(**values, earlier_version=True))
