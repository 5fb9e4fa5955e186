"""What holds of every batch, whatever bytes it is made of."""

from __future__ import annotations

import msgspec

from gradledger_monitor.ingest import decode, schema
from gradledger_monitor.store.packing import pack_records, read_record, unpack_records


def accounted(body: bytes) -> None:
    """Every line that is not empty is taken, or refused with a place and a reason."""
    batch = decode.read(body)
    lines = [number for number, line in enumerate(body.split(b"\n"), 1) if line.strip()]
    taken = [number for report in batch.processes for number, _ in report.records]
    refused = [refusal.line for refusal in batch.refused.listed]
    assert len(taken) + batch.refused.count + len(batch.processes) == len(lines)
    assert set(taken).isdisjoint(refused) and {*taken, *refused} <= set(lines)
    assert all(refusal.field.startswith("$") and refusal.reason for refusal in batch.refused.listed)
    for report in batch.processes:
        for _, record in report.records:
            if isinstance(record, schema.StepRecord):
                ((_, packed),) = pack_records([(record.step, record)])
                assert read_record(unpack_records(packed)[record.step]) == record
    msgspec.json.encode(batch.refused.listed)
