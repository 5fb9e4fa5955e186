"""What the service takes in and judges, in records and steps a second, on this machine.

    python bench/service.py [--db URL] [--records 20000] [--micro-batches 8]

Ingest is decoding, packing and one durable transaction a batch of 500, as over HTTP but for HTTP
itself. Beside it stands the bare insert of the same rows, in the same run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from gradledger_monitor import batches, wire
from gradledger_monitor.collecting import collect_seldom
from gradledger_monitor.judge import Judge
from gradledger_monitor.store import dialects, tables
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.packing import pack_record
from gradledger_monitor.store.reading import get_run
from gradledger_monitor.store.writing import store_batch
from helpers.batches import batch, fair_step

BATCH = 500
RUN = "bench"


def bodies(records: int, micro_batches: int) -> list[bytes]:
    """One rank's run, as the hooks send it."""
    tokens = tuple(5 + 7 * n % 40 for n in range(micro_batches))
    steps = [fair_step(n, tokens=tokens) for n in range(1, records + 1)]
    return [batch(RUN, steps[at : at + BATCH]) for at in range(0, records, BATCH)]


def ingest(store: Store, sent: Sequence[bytes]) -> float:
    """Seconds to take all bodies in."""
    began = time.perf_counter()
    for body in sent:
        store_batch(store, batches.read(body), time.time())
    return time.perf_counter() - began


def rows_of(sent: Sequence[bytes]) -> list[list[dict[str, Any]]]:
    """The rows that ingest writes, for another run."""
    made = []
    for body in sent:
        (report,) = batches.read(body).reports
        found = [r for _, r in report.lines if isinstance(r, wire.StepRecord)]
        head = {"run": 2, "rank": 0, "received": 1.0, "optimizer": 0}
        made.append([{**head, "step": r.step, "record": pack_record(r)} for r in found])
    return made


def bare(store: Store, rows: Sequence[list[dict[str, Any]]]) -> float:
    """Seconds to insert the same rows and nothing else, in as many transactions."""
    store_batch(store, batches.read(batch("other", [])), 1.0)
    began = time.perf_counter()
    for some in rows:
        with store.writing() as connection:
            statement, values = dialects.insert_many(connection, tables.steps, some)
            connection.execute(statement, values)
    return time.perf_counter() - began


def judge(store: Store) -> float:
    """Seconds to judge all of it."""
    began = time.perf_counter()
    Judge(store, patience=0).judge_pending()
    return time.perf_counter() - began


def restart(store: Store) -> float:
    """Seconds until a judge that begins has judged one more step."""
    row = get_run(store, RUN)
    assert row is not None
    store_batch(store, batches.read(batch(RUN, [fair_step(row.steps + 1)])), time.time())
    return judge(store)


def main() -> None:
    """Measure, and say it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", default="")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--micro-batches", type=int, default=8)
    asked = parser.parse_args()
    collect_seldom()  # as `gradledger serve` does
    with tempfile.TemporaryDirectory() as folder:
        store = Store(asked.db or f"sqlite:///{folder}/bench.db")
        store.migrate()
        sent = bodies(asked.records, asked.micro_batches)
        size = sum(map(len, sent)) / asked.records
        took, plain = ingest(store, sent), bare(store, rows_of(sent))
        rules = judge(store)
        print(f"{asked.records:,} records of {size:,.0f} bytes, K = {asked.micro_batches}")
        print(f"ingest   {asked.records / took:10,.0f} records/s")
        print(f"insert   {asked.records / plain:10,.0f} rows/s: ingest is {plain / took:.0%} of it")
        print(f"judge    {asked.records / rules:10,.0f} steps/s")
        print(f"restart  {restart(store):10.2f} s until one more step is judged")
        store.close()


if __name__ == "__main__":
    main()
