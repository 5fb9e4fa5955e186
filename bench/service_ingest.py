"""How fast records are ingested over HTTP, compared with a bare insert as the upper limit.

    python bench/service_ingest.py [--postgres] [--records 20000] [--rounds 7] [--json FILE]

Each round sends the same batches of 500 records of about 0.8 kB (K = 4) to a service in a separate
process, from one client, then from four concurrent clients. In between, it inserts them bare and
equally durably: with ``executemany`` into one SQLite table, or with COPY into one Postgres table.
Rules are evaluated at the same time, as in production. The CPU of the service is that of its
threads until the last batch was acknowledged; the evaluator's thread is the one that is busy when
no batch is left. Decoding is measured separately, in this process.
"""

from __future__ import annotations

import http.client
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import report

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from service_long_run import resident

from gradledger_monitor.ingest import decode
from gradledger_monitor.workers.gc_tuning import collect_seldom
from helpers.batches import batch, fair_step
from helpers.postgres import running_postgres
from helpers.service import Service, running_service

NOTES = [
    "A client waits for each response, so the sum of consecutive steps limits its rate: receiving "
    "the body, decoding, packing, inserting, the disk. Evaluation shares the interpreter. It "
    "yields to batches, for at most four fifths of its time.",
    "Decoding is in C (msgspec); its share grows as the other parts get cheaper. A batch of one "
    "rank is packed into one row; the bare insert writes 500 rows.",
    "The evaluator keeps up to 128 runs in memory, each with its last few thousand losses, about "
    "0.5 MB: memory grows with the number of runs up to that limit.",
]

BATCH = 500
TOKENS = (5, 12, 19, 26)
CLIENTS = 4
PARTS = 4
TABLE = (
    "CREATE TABLE bare (run bigint, optimizer integer, step bigint, rank integer, "
    "received double precision, record {blob}, PRIMARY KEY (run, optimizer, step, rank))"
)
Row = tuple[int, int, int, int, float, bytes]


# ---------------------------------------------------------------------- what is sent


def bodies(run: str, records: int, first: int = 1) -> list[bytes]:
    """One rank's run, as the hooks send it."""
    steps = [fair_step(n, tokens=TOKENS) for n in range(first, first + records)]
    return [batch(run, steps[at : at + BATCH]) for at in range(0, records, BATCH)]


def rows_of(run: int, sent: Sequence[bytes]) -> list[list[Row]]:
    """The same lines, as they are, one in a row."""
    lines = [body.splitlines()[1:] for body in sent]
    return [
        [(run, 0, at * BATCH + n, 0, 1.0, line) for n, line in enumerate(some)]
        for at, some in enumerate(lines)
    ]


# ---------------------------------------------------------------------- the floor


class Bare:
    """One table and nothing else."""

    def __init__(self, database: str) -> None:
        self._postgres = database.startswith("postgres")
        if self._postgres:
            self._copying = psycopg.connect(database.replace("+psycopg", ""), autocommit=True)
            self._copying.execute(TABLE.format(blob="bytea").encode())
            return
        self._inserting = sqlite3.connect(database, isolation_level=None)
        for pragma in ("journal_mode = WAL", "synchronous = FULL"):
            self._inserting.execute(f"PRAGMA {pragma}")
        self._inserting.execute(TABLE.format(blob="blob"))

    def insert(self, rows: Sequence[Row]) -> None:
        """One durable transaction."""
        if self._postgres:
            into = "COPY bare FROM STDIN (FORMAT BINARY)"
            with self._copying.cursor() as cursor, cursor.copy(into) as copy:
                copy.set_types(["int8", "int4", "int8", "int4", "float8", "bytea"])
                for row in rows:
                    copy.write_row(row)
            return
        self._inserting.execute("BEGIN IMMEDIATE")
        self._inserting.executemany("INSERT INTO bare VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._inserting.execute("COMMIT")


def insert_all(bare: Bare, rows: Sequence[Sequence[Row]]) -> tuple[float, float]:
    """Records a second, and a second of CPU."""
    began, busy = time.perf_counter(), time.process_time()
    for some in rows:
        bare.insert(some)
    count = sum(map(len, rows))
    return count / (time.perf_counter() - began), count / (time.process_time() - busy)


# ---------------------------------------------------------------------- the service


def cpu_seconds(service: Service) -> dict[str, float]:
    """CPU that each thread of a service has used."""
    threads = Path(f"/proc/{service.process.pid}/task").iterdir()
    return {t.name: int((t / "schedstat").read_text().split()[0]) / 1e9 for t in threads}


def since(before: dict[str, float], service: Service) -> dict[str, float]:
    """CPU that each has used since then."""
    return {t: used - before.get(t, 0.0) for t, used in cpu_seconds(service).items()}


def send(service: Service, sent: Sequence[bytes], waits: list[float]) -> None:
    """One client: each batch when the one before it was acknowledged."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port)
    for body in sent:
        began = time.perf_counter()
        connection.request(
            "POST", "/api/v1/records", body, {"Content-Type": "application/x-ndjson"}
        )
        answer = connection.getresponse()
        answer.read()
        waits.append(time.perf_counter() - began)
        if answer.status != 200:
            raise SystemExit(f"the service answered {answer.status}")
    connection.close()


def send_all(service: Service, clients: Sequence[Sequence[bytes]]) -> tuple[float, list[float]]:
    """Records a second of all clients together, and how long each batch took."""
    waits: list[float] = []
    threads = [threading.Thread(target=send, args=(service, sent, waits)) for sent in clients]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(waits) * BATCH / (time.perf_counter() - began), waits


# ---------------------------------------------------------------------- rounds


class Rounds:
    """What all rounds measured."""

    def __init__(self, records: int) -> None:
        self.records = records
        self.bare: list[float] = []
        self.bare_cpu: list[float] = []
        self.one: list[float] = []
        self.one_cpu: list[float] = []
        self.all_cpu: list[float] = []  # with the judge's
        self.four: list[float] = []
        self.decoding: list[float] = []  # CPU seconds a record
        self.waits: list[float] = []
        self.memory: list[float] = []  # MB, while one run goes on

    def play(self, number: int, service: Service, bare: Bare) -> None:
        """One of each."""
        sent = bodies(f"one-{number}", self.records)
        shares = [bodies(f"four-{number}-{n}", self.records // CLIENTS) for n in range(CLIENTS)]
        rate, cpu = insert_all(bare, rows_of(number, sent))
        self.bare.append(rate)
        self.bare_cpu.append(cpu)
        before = cpu_seconds(service)
        rate, _ = send_all(service, [sent])
        self.one.append(rate)
        used = since(before, service)
        evaluator = settle(service)
        self.all_cpu.append(self.records / sum(used.values()))
        self.one_cpu.append(self.records / (sum(used.values()) - used.get(evaluator, 0.0)))
        busy = time.process_time()
        for body in sent:
            decode.read(body)
        self.decoding.append((time.process_time() - busy) / self.records)
        rate, waits = send_all(service, shares)
        self.four.append(rate)
        self.waits += waits
        settle(service)


def steady(service: Service, records: int) -> Iterator[float]:
    """Megabytes held after each part of a run that goes on."""
    for part in range(PARTS):
        send_all(service, [bodies("steady", records, part * records + 1)])
        settle(service)
        yield resident(service)


def settle(service: Service) -> str:
    """Wait until it has nothing more to judge; the thread that did."""
    first = before = cpu_seconds(service)
    while True:
        time.sleep(1.0)
        if sum(since(before, service).values()) < 0.1:
            used = since(first, service)
            return max(used, key=lambda thread: used[thread])
        before = cpu_seconds(service)


def ratio(
    name: str, values: Sequence[float], floors: Sequence[float], goal: float | None
) -> report.Measure:
    """Round by round against the floor of the same round, with a goal to reach."""
    shares = sorted(100 * value / floor for value, floor in zip(values, floors, strict=True))
    low, middle, high = statistics.quantiles(shares, n=4)
    floor = f"{statistics.median(values):,.0f} of {statistics.median(floors):,.0f} records/s"
    if goal is None:
        return report.Measure(name, middle, "%", low, high, floor)
    return report.Measure(
        name, middle, "%", low, high, floor, f"at least {goal:g}%", middle >= goal
    )


def add_measures(rounds: Rounds, about: report.Report, postgres: bool) -> None:
    """The measures."""
    bare = "COPY" if postgres else "executemany"
    about.measures = [
        ratio(f"one client, of bare {bare}", rounds.one, rounds.bare, 45 if postgres else 30),
        ratio("four concurrent clients, of one client", rounds.four, rounds.one, 100),
    ]
    late = 1_000 * statistics.quantiles(rounds.waits, n=100)[-1]
    about.measures.append(
        report.below(report.Measure("p99 latency of a batch, four clients", late, "ms"), 250)
    )
    first, last = rounds.memory[0], rounds.memory[-1]
    grown = f"{last:,.0f} MB, {first:,.0f} MB after a quarter"
    flat = report.Measure("memory while one run continues", last / first, "x", floor=grown)
    about.measures.append(report.below(flat, 1.05))
    if postgres:
        return
    cpu = ratio("per second of CPU, of bare executemany", rounds.one_cpu, rounds.bare_cpu, 20)
    whole = ratio("the same, with concurrent evaluation", rounds.all_cpu, rounds.bare_cpu, None)
    spent = [100 * d * rate for d, rate in zip(rounds.decoding, rounds.one_cpu, strict=True)]
    share = report.median_of("decoding and validation, share of that CPU", spent, "%", "", 15)
    about.measures += [cpu, whole, share]


@contextmanager
def places(postgres: bool) -> Iterator[tuple[str | Path, str]]:
    """Where the service stores, and where the bare insert does."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if postgres:
            server = stack.enter_context(running_postgres())
            yield server.create(), server.create()
        else:
            yield folder / "service.db", str(folder / "bare.db")


def main() -> None:
    """Measure everything and publish the results."""
    parser = report.arguments(__doc__)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    collect_seldom()
    rounds = Rounds(options.records)
    with places(options.postgres) as (database, bare_database):
        bare = Bare(bare_database)
        with running_service(database) as service:
            send_all(service, [bodies("warm", 2_000)])
            for number in range(1, options.rounds + 1):
                rounds.play(number, service, bare)
            rounds.memory += steady(service, options.records)
    kind = "Postgres" if options.postgres else "SQLite"
    command = "python bench/service_ingest.py" + (" --postgres" if options.postgres else "")
    about = report.Report(f"Ingest over HTTP into {kind}, durable, batches of {BATCH}", command)
    add_measures(rounds, about, options.postgres)
    about.notes += NOTES
    report.publish(about, options.json)


if __name__ == "__main__":
    main()
