"""Ingest of the same steps, and a chart of a long run, by this service and by peers.

    python bench/service_peers.py --peers PYTHON [--steps 2000] [--long 200000] [--json FILE]

PYTHON belongs to an environment with MLflow and trackio (bench/peers-training.txt). Each server is
a separate process on this machine with its own SQLite database; one client sends to each in turn,
in rounds. This service receives the record of a step, a peer the ten values that this service
computes from it: MLflow in `log-batch` requests of 100 steps (its limit is 1,000 metrics), trackio
in `bulk_log` requests of 500. Then one metric of a long run is requested as the pages of each tool
do: MLflow's `get-history-bulk-interval`, trackio's `get_metric_values`, ours with 2,000 points and
their extremes.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import report

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from gradledger_monitor.ingest import decode
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.steps.ingest import store_batch
from gradledger_monitor.workers.evaluator import Evaluator
from helpers.batches import batch, fair_step
from helpers.service import running_service

TOKENS = (5, 12, 19, 26)
FIGURES = 10
SETTLES = 10.0  # seconds
OURS, MLFLOW, TRACKIO = "gradledger", "MLflow", "trackio"
TRACKIO_SERVER = """
import sys, uvicorn
from trackio.server import build_starlette_app_only
uvicorn.run(build_starlette_app_only()[0], port=int(sys.argv[1]), log_level="error")
"""
TOKEN = "a-token-of-the-benchmark-and-of-nothing-else"


class Server:
    """One that answers over HTTP, on a connection that stays open."""

    def __init__(self, port: int, **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        self._headers = {"Content-Type": "application/json", **headers}

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
        """The body of the answer; ends the benchmark where it is a refusal."""
        named = self._headers | {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            self._connection.request(method, path, body, named)
            answer = self._connection.getresponse()
        except ConnectionError:  # it was idle for too long
            self._connection.close()
            self._connection.request(method, path, body, named)
            answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {text[:300]!r}")
        return text

    def post(self, path: str, content: Any) -> Any:
        """JSON there and back."""
        return json.loads(self.request("POST", path, json.dumps(content).encode()) or b"null")


def figures(step: int) -> dict[str, float]:
    """The values of a step that a peer receives."""
    return {f"figure_{n}": step * 0.37 % 1.0 + n for n in range(FIGURES)}


def parts(steps: int, size: int) -> Iterator[range]:
    """Steps, some at a time."""
    for first in range(1, steps + 1, size):
        yield range(first, min(first + size, steps + 1))


# ---------------------------------------------------------------------- each one's requests


class Ours:
    """This service."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def requests(self, run: str, steps: int) -> list[Callable[[], Any]]:
        """Bodies made beforehand."""
        sent = [
            batch(run, [fair_step(n, tokens=TOKENS) for n in some]) for some in parts(steps, 500)
        ]
        kind = {"Content_Type": "application/x-ndjson"}
        path = "/api/v1/records"
        return [partial(self._server.request, "POST", path, body, **kind) for body in sent]

    def chart(self) -> bytes:
        """2,000 points of one figure."""
        path = "/api/v1/runs/long/series?figures=norm&max_points=2000"
        return self._server.request("GET", path, accept_encoding="gzip")


class MLflow:
    """MLflow's tracking server."""

    API = "/api/2.0/mlflow"

    def __init__(self, server: Server, database: Path) -> None:
        self._server = server
        self._database = database
        self._long = ""

    def _run(self) -> str:
        document = self._server.post(f"{self.API}/runs/create", {"experiment_id": "0"})
        return str(document["run"]["info"]["run_id"])

    def requests(self, run: str, steps: int) -> list[Callable[[], Any]]:
        """100 steps each: it takes 1,000 metrics at a time."""
        key = self._run()
        bodies = []
        for some in parts(steps, 100):
            metrics = [
                {"key": name, "value": value, "step": n, "timestamp": 1_000 + n}
                for n in some
                for name, value in figures(n).items()
            ]
            bodies.append(json.dumps({"run_id": key, "metrics": metrics}).encode())
        path = f"{self.API}/runs/log-batch"
        return [partial(self._server.request, "POST", path, body) for body in bodies]

    def fill(self, steps: int) -> None:
        """One metric of a long run, into its table, and the one row that it keeps of the last."""
        self._long = self._run()
        with sqlite3.connect(self._database, timeout=60) as connection:
            into = "(key, value, timestamp, run_uuid, step, is_nan)"
            rows = [("norm", random.random(), n, self._long, n, 0) for n in range(1, steps + 1)]
            connection.executemany(f"INSERT INTO metrics {into} VALUES (?, ?, ?, ?, ?, ?)", rows)
            last = f"INSERT INTO latest_metrics {into} VALUES (?, ?, ?, ?, ?, ?)"
            connection.execute(last, rows[-1])

    def chart(self) -> bytes:
        """The request of its page for a chart."""
        path = "/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval"
        return self._server.request(
            "GET", f"{path}?run_ids={self._long}&metric_key=norm&max_results=2000"
        )


class Trackio:
    """trackio's own server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def requests(self, run: str, steps: int) -> list[Callable[[], Any]]:
        """500 steps each."""
        bodies = []
        for some in parts(steps, 500):
            logs = [_logged(run, n, figures(n)) for n in some]
            bodies.append(json.dumps({"logs": logs, "hf_token": None}).encode())
        path = "/api/bulk_log"
        return [partial(self._server.request, "POST", path, body) for body in bodies]

    def fill(self, steps: int) -> None:
        """One metric of a long run."""
        for some in parts(steps, 5_000):
            logs = [_logged("long", n, {"norm": random.random()}) for n in some]
            self._server.post("/api/bulk_log", {"logs": logs, "hf_token": None})

    def chart(self) -> bytes:
        """The request of its page for a chart, downsampled by the server."""
        query = {"project": "bench", "run": "long", "metric_name": "norm", "max_points": 2_000}
        return self._server.request("POST", "/api/get_metric_values", json.dumps(query).encode())


def _logged(run: str, step: int, metrics: dict[str, float]) -> dict[str, Any]:
    return {"project": "bench", "run": run, "metrics": metrics, "step": step, "config": None}


Peer = Ours | MLflow | Trackio


# ---------------------------------------------------------------------- servers


@contextmanager
def started(command: list[str], folder: Path, port: int, **settings: str) -> Iterator[None]:
    """A server, once it listens."""
    environment = os.environ | settings
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_for(port, process)
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # it has child processes
        process.wait(30)


def _wait_for(port: int, process: subprocess.Popen[bytes], seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise SystemExit("a peer's server does not listen")


def free_port() -> int:
    """One that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def long_run(database: Path, steps: int) -> None:
    """The long run in our own database, judged."""
    store = Store(f"sqlite:///{database}")
    store.migrate()
    for some in parts(steps, 2_000):
        records = []
        for number in some:
            record = fair_step(number, tokens=TOKENS)
            record.norm = random.random()
            records.append(record)
        store_batch(store, decode.read(batch("long", records)), time.time())
    Evaluator(store, rank_timeout=0).evaluate_pending()
    store.close()


@contextmanager
def all_of_them(python: str, long: int) -> Iterator[dict[str, Peer]]:
    """Every server, with the long run in it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        long_run(folder / "ours.db", long)
        service = stack.enter_context(running_service(folder / "ours.db"))
        port = free_port()
        command = [python, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
        command += ["--backend-store-uri", "sqlite:///mlflow.db"]
        stack.enter_context(started(command, folder, port))
        mlflow = MLflow(Server(port), folder / "mlflow.db")
        other = free_port()
        environment = {"TRACKIO_DIR": str(folder / "trackio"), "TRACKIO_WRITE_TOKEN": TOKEN}
        command = [python, "-c", TRACKIO_SERVER, str(other)]
        stack.enter_context(started(command, folder, other, **environment))
        trackio = Trackio(Server(other, **{"X-Trackio-Write-Token": TOKEN}))
        mlflow.fill(long)
        trackio.fill(long)
        yield {OURS: Ours(Server(service.port)), MLFLOW: mlflow, TRACKIO: trackio}


# ---------------------------------------------------------------------- rounds


def rate(peer: Peer, run: str, steps: int) -> float:
    """Steps a second, each request when the one before it was answered."""
    requests = peer.requests(run, steps)
    began = time.perf_counter()
    for request in requests:
        request()
    return steps / (time.perf_counter() - began)


def drawn(peer: Peer) -> float:
    """Milliseconds of one chart."""
    began = time.perf_counter()
    peer.chart()
    return (time.perf_counter() - began) * 1_000


def times(
    name: str, ours: Sequence[float], theirs: Sequence[float], unit: str, goal: float
) -> report.Measure:
    """How many times better ours is, round by round."""
    faster = unit == "steps/s"
    pairs = zip(ours, theirs, strict=True)
    ratios = [one / other if faster else other / one for one, other in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    medians = statistics.median(ours), statistics.median(theirs)
    floor = f"{medians[0]:,.4g} against {medians[1]:,.4g} {unit}"
    return report.Measure(
        name, middle, "x", low, high, floor, f"at least {goal:g} x", middle >= goal
    )


def measure(python: str, steps: int, long: int, rounds: int) -> list[report.Measure]:
    """All in each round."""
    rates: dict[str, list[float]] = {OURS: [], MLFLOW: [], TRACKIO: []}
    charts: dict[str, list[float]] = {OURS: [], MLFLOW: [], TRACKIO: []}
    with all_of_them(python, long) as peers:
        for number in range(rounds):
            for name, peer in peers.items():
                many = steps if name == MLFLOW else steps * 5
                rates[name].append(rate(peer, f"run-{number}", many))
        time.sleep(SETTLES)  # each has its own work to do on what it took in
        for _ in range(rounds):
            for name, peer in peers.items():
                charts[name].append(drawn(peer))
    goals = {MLFLOW: (30, 10), TRACKIO: (2, 10)}
    measures = []
    for name, (ingest, chart) in goals.items():
        measures.append(
            times(f"ingest, against {name}", rates[OURS], rates[name], "steps/s", ingest)
        )
        title = f"one chart of {long:,} steps, against {name}"
        measures.append(times(title, charts[OURS], charts[name], "ms", chart))
    return measures


def main() -> None:
    """Measure everything and publish the results."""
    parser = report.arguments(__doc__)
    parser.add_argument("--peers", required=True, help="python of the peers' environment")
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--long", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    python = str(Path(options.peers).absolute())
    command = f"python bench/service_peers.py --peers {options.peers}"
    about = report.Report("Ingest and charts compared with peers, over HTTP, SQLite", command)
    about.measures = measure(python, options.steps, options.long, options.rounds)
    report.publish(about, options.json)


if __name__ == "__main__":
    main()
