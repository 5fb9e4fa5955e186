"""A run of a million steps: judged again, drawn, and its room on disk; and a list of many runs.

    python bench/service_long_run.py [--steps 1000000] [--runs 10000] [--rounds 7] [--json FILE]

One rank's run (K = 4, records of about 0.8 kB, figures that scatter) is stored and judged in
SQLite, then judged once more in memory as `gradledger replay` does, in a process of its own; after
`make compiled`, in another one with facts and rules in C, too. A service in a process of its own
then answers for one chart of 2,000 points: cold is the first answer of a service that has just
started, warm the same once more, which the service has in its memory as long as nothing new was
judged. The floor is SQL on one narrow table of the same figure, read and thinned to as many lows
and highs and written as JSON here, without HTTP.
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
    "Of the database about a third are records, half the figures that are charted of each step, a "
    "tenth their index. Records lie in chunks, what came at once packed as a whole; most of what "
    "is left of one is floating-point numbers, which do not compress. With several ranks the "
    "figures, which a step has once, are shared by its records.",
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
    """Milliseconds of one request on a connection of its own, and the answer."""
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
    """The same figure in a table of its own."""
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
    size = report.Measure("on the wire", statistics.median(sizes) / 1_000, "kB")
    return [
        report.median_of(f"chart of {POINTS:,} points, cold", cold, "ms", alone, 150),
        report.median_of("the same, warm", warm, "ms", alone, 30),
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
        report.median_of(f"list of {count:,} runs, the page", page[1:], "ms", "", 100),
        report.median_of("the same, the API", api[1:], "ms", "", 100),
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
            report.Measure("disk per record, with its index", stored, "B", floor=packed), 250
        ),
        report.below(
            report.Measure("the whole database per record", whole, "B", floor=packed), 250
        ),
    ]


def replay_here(database: str) -> list[float]:
    """Seconds by the clock and of CPU."""
    store = Store(f"sqlite:///{database}")
    began, busy = time.perf_counter(), time.process_time()
    replay(store, RUN, RuleOverrides())
    took = time.perf_counter() - began, time.process_time() - busy
    store.close()
    return list(took)


def replayed(database: Path, count: int, judged: float) -> list[report.Measure]:
    """The same in a process of its own for each build, with goals."""
    share = count / 1_000_000
    first = f"{judged:,.1f} s when first judged and written"
    measures = []
    for build, environment in builds.at_hand().items():
        took, cpu = builds.told(environment, __file__, "--replay", str(database))
        name = f"{count:,} steps replayed{build}"
        measures += [
            report.below(report.Measure(name, took, "s", floor=first), 60 * share),
            report.below(report.Measure(f"its CPU{build}", cpu, "s"), 60 * share),
        ]
    return measures


def measure(asked: argparse.Namespace, folder: Path) -> list[report.Measure]:
    """Everything."""
    database = folder / "long.db"
    store = Store(f"sqlite:///{database}")
    store.migrate()
    judged = fill(store, asked.steps)
    store.close()
    measures = replayed(database, asked.steps, judged)
    measures += disk(database, asked.steps)
    measures += charts(database, folder, asked.rounds)
    return measures + lists(folder, asked.runs, asked.rounds)


def main() -> None:
    """Measure, and say it."""
    parser = report.arguments(__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--replay", metavar="DATABASE", help="only that, as JSON")
    asked = parser.parse_args()
    collect_seldom()
    if asked.replay:
        print(json.dumps(replay_here(asked.replay)))
        return
    title = f"A run of {asked.steps:,} steps, and {asked.runs:,} runs, in SQLite"
    about = report.Report(title, "python bench/service_long_run.py")
    with tempfile.TemporaryDirectory() as folder:
        about.measures = measure(asked, Path(folder))
    about.notes += NOTES
    report.tell(about, asked.json)


if __name__ == "__main__":
    main()
