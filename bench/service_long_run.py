"""A run of a million steps: replay, charts and disk space; and a list of many runs.

    python bench/service_long_run.py [--steps 1000000] [--runs 10000] [--rounds 7] [--json FILE]

The run of one rank (K = 4, records of about 0.8 kB, values that scatter) is stored and evaluated in
SQLite, then evaluated again in memory as `gradledger replay` does, in a separate process; after
`make compiled`, in another process with facts and rules in C, too. A service in a separate process
then serves a chart of 2,000 points: cold is the first response after the start of the service, warm
is the same request again, which the service answers from memory until new steps are evaluated. The
floor is SQL on one narrow table with the same values, reduced to as many minima and maxima and
written as JSON in this process, without HTTP.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import builds
import httpx2
import report

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from gradledger.records import StepRecord
from gradledger_monitor.ingest import decode
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.runs.replay import replay
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.steps.ingest import store_batch
from gradledger_monitor.workers.evaluator import Evaluator
from gradledger_monitor.workers.gc_tuning import collect_seldom
from helpers.batches import batch, fair_step
from helpers.service import Service, running_service

NOTES = [
    "About a third of the database is records, half is the charted values of each step, and a "
    "tenth is their index. Records are stored in chunks; records that arrive together are "
    "compressed together. The rest is mostly floating-point numbers, which do not compress. With "
    "several ranks, the records of a step share its charted values.",
]

RUN = "long"
TOKENS = (5, 12, 19, 26)
SPIKE = 777.25
POINTS = 2_000
CHART = f"/api/v1/runs/{RUN}/series?figures=norm&max_points={POINTS}"


def steps_of(count: int) -> Iterator[StepRecord]:
    """Steps whose losses and norms scatter, with one spike that no chart may lose."""
    chance = random.Random(1)
    for number in range(1, count + 1):
        record = fair_step(number, tokens=TOKENS)
        record.norm = SPIKE if number == count // 3 else chance.uniform(0.8, 1.2)
        for micro_batch in record.micro_batches:
            micro_batch.loss = float(micro_batch.loss or 0) * chance.uniform(0.9, 1.1)
        yield record


def fill(store: Store, count: int) -> float:
    """Store the run and judge it; seconds of judging."""
    some: list[StepRecord] = []
    for record in steps_of(count):
        some.append(record)
        if len(some) == 2_000 or record.step == count:
            store_batch(store, decode.read(batch(RUN, some)), time.time())
            some = []
    began = time.perf_counter()
    Evaluator(store, rank_timeout=0).evaluate_pending()
    return time.perf_counter() - began


def many_runs(store: Store, count: int) -> None:
    """Runs of one step."""
    for number in range(count):
        name = f"trial {number % 100}"
        store_batch(store, decode.read(batch(f"run-{number}", [fair_step(1)], name=name)), 1.0)
    Evaluator(store, rank_timeout=0).evaluate_pending()


# ---------------------------------------------------------------------- asking


def timed(service: Service, path: str, **headers: str) -> tuple[float, httpx2.Response]:
    """Milliseconds of one request on a new connection, and the response."""
    with httpx2.Client(base_url=service.url, timeout=60) as client:
        began = time.perf_counter()
        answer = client.get(path, headers={"accept-encoding": "gzip", **headers})
        took = time.perf_counter() - began
    answer.raise_for_status()
    return took * 1_000, answer


def bare(database: Path) -> float:
    """Milliseconds of the floor."""
    with sqlite3.connect(database) as connection:
        began = time.perf_counter()
        last = connection.execute("SELECT max(step) FROM narrow").fetchone()[0]
        size = max(1, last * 2 // POINTS)
        query = "SELECT min(step), min(norm), max(norm) FROM narrow GROUP BY step / ?"
        text = json.dumps(connection.execute(query, [size]).fetchall())
        took = time.perf_counter() - began
    assert str(SPIKE) in text
    return took * 1_000


def narrow(database: Path, folder: Path) -> Path:
    """The same values in a separate table."""
    path = folder / "narrow.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE narrow (step INTEGER PRIMARY KEY, norm REAL)")
        connection.execute("ATTACH ? AS other", [str(database)])
        connection.execute("INSERT INTO narrow SELECT step, norm FROM other.facts")
    return path


def resident(service: Service) -> float:
    """Megabytes that the service holds."""
    text = Path(f"/proc/{service.process.pid}/statm").read_text().split()
    return int(text[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


# ---------------------------------------------------------------------- measures


def charts(database: Path, folder: Path, rounds: int) -> list[report.Measure]:
    """One chart, cold and warm, each round beside the floor."""
    other = narrow(database, folder)
    cold, warm, floor, sizes, idle = [], [], [], [], []
    for _ in range(rounds):
        floor.append(bare(other))
        with running_service(database) as service:
            idle.append(resident(service))
            took, answer = timed(service, CHART)
            cold.append(took)
            sizes.append(int(answer.headers["content-length"]))
            assert SPIKE in answer.json()["norm_high"], "the spike is lost"
            warm.append(timed(service, CHART)[0])
    alone = f"{statistics.median(floor):,.1f} ms bare"
    size = report.Measure("size of the response", statistics.median(sizes) / 1_000, "kB")
    return [
        report.median_of(f"chart of {POINTS:,} points, cold", cold, "ms", alone, 150),
        report.median_of(f"chart of {POINTS:,} points, warm", warm, "ms", alone, 30),
        report.below(size, 60),
        report.median_of("memory of the idle service", idle, "MB", "", 120),
    ]


def lists(folder: Path, count: int, rounds: int) -> list[report.Measure]:
    """The page and the API, of many runs."""
    database = folder / "many.db"
    store = Store(f"sqlite:///{database}")
    store.migrate()
    many_runs(store, count)
    store.close()
    page, api = [], []
    with running_service(database) as service:
        for _ in range(rounds + 1):
            page.append(timed(service, "/", accept="text/html")[0])
            api.append(timed(service, "/api/v1/runs?limit=100")[0])
    return [
        report.median_of(f"list of {count:,} runs, page", page[1:], "ms", "", 100),
        report.median_of(f"list of {count:,} runs, API", api[1:], "ms", "", 100),
    ]


def disk(database: Path, count: int) -> list[report.Measure]:
    """Bytes for each record: with its index, and with all that was made of it."""
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        query = "SELECT sum(pgsize) FROM dbstat WHERE name LIKE '%chunks%'"
        stored = connection.execute(query).fetchone()[0] / count
        query = "SELECT sum(length(records)) FROM chunks"
        alone = connection.execute(query).fetchone()[0] / count
    packed = f"{alone:,.0f} B packed"
    whole = database.stat().st_size / count
    return [
        report.below(
            report.Measure("disk per record, including its index", stored, "B", floor=packed), 250
        ),
        report.below(report.Measure("whole database per record", whole, "B", floor=packed), 250),
    ]


def replay_here(database: str) -> list[float]:
    """Seconds by the clock and of CPU."""
    store = Store(f"sqlite:///{database}")
    began, busy = time.perf_counter(), time.process_time()
    replay(store, RUN, RuleOverrides())
    took = time.perf_counter() - began, time.process_time() - busy
    store.close()
    return list(took)


def replayed(database: Path, count: int, first_seconds: float) -> list[report.Measure]:
    """The replay in a separate process for each build, with goals."""
    share = count / 1_000_000
    first = f"{first_seconds:,.1f} s when first evaluated and stored"
    measures = []
    for build, environment in builds.available().items():
        took, cpu = builds.run_json(environment, __file__, "--replay", str(database))
        name = f"{count:,} steps replayed{build}"
        measures += [
            report.below(report.Measure(name, took, "s", floor=first), 60 * share),
            report.below(report.Measure(f"CPU of the replay{build}", cpu, "s"), 60 * share),
        ]
    return measures


def measure(options: argparse.Namespace, folder: Path) -> list[report.Measure]:
    """Everything."""
    database = folder / "long.db"
    store = Store(f"sqlite:///{database}")
    store.migrate()
    first_seconds = fill(store, options.steps)
    store.close()
    measures = replayed(database, options.steps, first_seconds)
    measures += disk(database, options.steps)
    measures += charts(database, folder, options.rounds)
    return measures + lists(folder, options.runs, options.rounds)


def main() -> None:
    """Measure everything and publish the results."""
    parser = report.arguments(__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--replay", metavar="DATABASE", help="only that, as JSON")
    options = parser.parse_args()
    collect_seldom()
    if options.replay:
        print(json.dumps(replay_here(options.replay)))
        return
    title = f"A run of {options.steps:,} steps, and {options.runs:,} runs, in SQLite"
    about = report.Report(title, "python bench/service_long_run.py")
    with tempfile.TemporaryDirectory() as folder:
        about.measures = measure(options, Path(folder))
    about.notes += NOTES
    report.publish(about, options.json)


if __name__ == "__main__":
    main()
