"""How fast steps are judged, and how soon after they came.

    python bench/service_evaluation.py [--steps 5000] [--rounds 7] [--seconds 20] [--json FILE]

All rules are on. The first figures are facts, rules and charted figures of records that are in
memory already, one optimizer's steps of K micro-batches, on one CPU: of a plain loop, of one with a
GradScaler and clipping, and of one whose token weights are unequal, so that a finding is made anew
at every step. Beside them stands decoding alone, in the same rounds. Each round is a process of its
own; after `make compiled`, one with facts and rules in C follows each. The lag is that of a service
in a process of its own to which four clients send 2,000 records a second in batches of 50: from
the moment a batch is sent until the database says that its last step is judged.
"""

from __future__ import annotations

import http.client
import json
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import builds
import msgspec
import report

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from gradledger.records import Event, Scaler, StepRecord
from gradledger_monitor.evaluation.engine import Engine
from gradledger_monitor.evaluation.run_state import EvaluatedStep, RunState
from gradledger_monitor.evaluation.step_completeness import ArrivedStep
from gradledger_monitor.ingest import decode, schema
from gradledger_monitor.model import step_facts
from gradledger_monitor.workers.gc_tuning import collect_seldom
from helpers.batches import batch, fair_step, step
from helpers.service import Service, running_service

NOTES = [
    "What bounds facts and rules in Python is the interpreter; compiled, what Python's objects "
    "themselves cost: attributes of records, floats, lists. Rules that share a "
    "question are asked it once, what nearly all ask for is worked out at once, and what no rule "
    "or chart asks for is not. The words of a claim are put together for the step that is shown.",
    "The lag is mostly that of four runs judged one after the other, each look with a transaction "
    "that waits for the disk, while batches go first.",
]

TOKENS = (5, 12, 19, 26)
SCALE = 65_536.0
PER_SECOND = 2_000
CLIENTS = 4
AT_ONCE = 50


# ---------------------------------------------------------------------- records


def plain(number: int) -> StepRecord:
    """Every token weighs the same."""
    return fair_step(number, tokens=TOKENS)


def scaled(number: int) -> StepRecord:
    """The same under a GradScaler, clipped, with a schedule."""
    record, last = fair_step(number, tokens=TOKENS), len(TOKENS)
    for micro_batch in record.micro_batches:
        micro_batch.scale = SCALE
        micro_batch.loss = float(micro_batch.loss or 0) * SCALE
        for term in micro_batch.terms:
            term.weight = float(term.weight or 0) * SCALE
    clip = Event("clip_norm", last, limit=2.0, norm=1.0)
    record.events = [Event("schedule", 0), Event("unscale", last), clip]
    record.events += [Event("scaler_step", last), Event("update", last)]
    record.post_factor, record.scaler = 1 / SCALE, Scaler(0, SCALE, 7)
    return record


def unequal(number: int) -> StepRecord:
    """The mean of micro-batch means."""
    return step(number, tokens=TOKENS)


def decoded(made: Callable[[int], StepRecord], steps: int) -> list[schema.StepRecord]:
    """Records as the service holds them."""
    (sent,) = decode.read(batch("bench", map(made, range(1, steps + 1)))).processes
    return [line for _, line in sent.records if isinstance(line, schema.StepRecord)]


# ---------------------------------------------------------------------- in memory


def evaluate(records: list[schema.StepRecord]) -> float:
    """Steps a second of CPU."""
    info = step_facts.RunInfo("bench", "bench", 1, ["SGD"])
    fold = RunState(Engine(info), 0)
    began = time.process_time()
    for record in records:
        seen = fold.see(info, ArrivedStep(0, record.step, record.time, {0: record}))
        assert seen is not None
        EvaluatedStep.of(seen)  # the figures that are charted
    return len(records) / (time.process_time() - began)


def decode_alone(records: list[schema.StepRecord]) -> float:
    """The same of decoding them alone, which no judge can do without."""
    lines = [msgspec.msgpack.encode(record) for record in records]
    decoder = msgspec.msgpack.Decoder(schema.StepRecord)
    began = time.process_time()
    for line in lines:
        decoder.decode(line)
    return len(records) / (time.process_time() - began)


def calls(records: list[schema.StepRecord]) -> float:
    """Python functions that are called for a step."""
    called = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal called
        called += event == "call"

    sys.setprofile(count)
    try:
        evaluate(records)
    finally:
        sys.setprofile(None)
    return called / len(records)


KINDS = {
    "a plain loop": plain,
    "GradScaler, clipping, schedule": scaled,
    "a finding at every step": unequal,
}
DECODED = "decoded"


def one_round(steps: int) -> dict[str, float]:
    """Steps a second of all kinds, in this process."""
    records = {kind: decoded(made, steps) for kind, made in KINDS.items()}
    return {
        DECODED: decode_alone(records["a plain loop"]),
        **{kind: evaluate(some) for kind, some in records.items()},
    }


def in_memory(steps: int, rounds: int) -> list[report.Measure]:
    """All kinds and builds in each round."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for build, environment in builds.at_hand().items():
            rates = builds.told(environment, __file__, "--steps", str(steps), "--one-round")
            for kind, rate in rates.items():
                found.setdefault(kind + build, []).append(rate)
    alone = f"{statistics.median(found[DECODED]):,.0f} steps/s decoded"
    judged = {name: rates for name, rates in found.items() if not name.startswith(DECODED)}
    took = [_rate(f"facts and rules, {name}", rates, alone) for name, rates in judged.items()]
    took += [pays(kind, found) for kind in KINDS if kind + builds.COMPILED in found]
    called = {kind: calls(decoded(made, 1_000)) for kind, made in KINDS.items()}
    return took + [report.Measure(f"functions called, {k}", n, "a step") for k, n in called.items()]


def pays(kind: str, found: dict[str, list[float]]) -> report.Measure:
    """How much faster the compiled rules are, round by round."""
    pairs = zip(found[kind + builds.COMPILED], found[kind], strict=True)
    low, middle, high = statistics.quantiles([fast / slow for fast, slow in pairs], n=4)
    name, goal = f"compiled, over Python: {kind}", 2.0
    return report.Measure(name, middle, "x", low, high, "1", f"over {goal:g} x", middle > goal)


def _rate(name: str, rates: list[float], floor: str) -> report.Measure:
    low, middle, high = statistics.quantiles(rates, n=4)
    goal = 20_000
    return report.Measure(
        name, middle, "steps/s", low, high, floor, f"at least {goal:,}", middle >= goal
    )


# ---------------------------------------------------------------------- live


class Client(threading.Thread):
    """One run that sends at an even pace."""

    def __init__(self, service: Service, number: int, seconds: float) -> None:
        super().__init__()
        self._port, self.run_id, self._seconds = service.port, f"live-{number}", seconds
        self.sent: dict[int, float] = {}  # last step of a batch -> when it was sent

    def run(self) -> None:
        """Send until the time is over."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        pause = AT_ONCE * CLIENTS / PER_SECOND
        due, first = time.perf_counter(), 1
        end = due + self._seconds
        while due < end:
            body = batch(self.run_id, map(plain, range(first, first + AT_ONCE)))
            time.sleep(max(0.0, due - time.perf_counter()))
            self.sent[first + AT_ONCE - 1] = time.perf_counter()
            connection.request(
                "POST", "/api/v1/records", body, {"Content-Type": "application/x-ndjson"}
            )
            connection.getresponse().read()
            first, due = first + AT_ONCE, due + pause
        connection.close()


def lags(seconds: float) -> list[float]:
    """Seconds from a batch until its last step is judged."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "live.db"
        with running_service(database) as service:
            clients = [Client(service, number, seconds) for number in range(CLIENTS)]
            for client in clients:
                client.start()
            return watch(database, clients)


def watch(database: Path, clients: list[Client]) -> list[float]:
    """Look into the database until all is judged."""
    looking = sqlite3.connect(database)
    asked = "SELECT id, step FROM progress JOIN runs ON runs.key = progress.run"
    found: list[float] = []
    open_ones = {client.run_id: client for client in clients}
    waiting = True
    while waiting or any(client.is_alive() for client in clients):
        time.sleep(0.01)
        now = time.perf_counter()
        for run, reached in looking.execute(asked):
            sent = open_ones[run].sent
            over = [last for last in list(sent) if last <= reached]
            found += [now - sent.pop(last) for last in over]
        waiting = any(client.sent for client in clients)
    looking.close()
    return found


def live(seconds: float) -> list[report.Measure]:
    """Median and the slowest hundredth."""
    found = lags(seconds)
    parts = statistics.quantiles(found, n=100)
    half = report.median_of(
        f"lag at {PER_SECOND:,} records/s", found, "s", f"{len(found)} batches", 0.5
    )
    return [half, report.below(report.Measure("its p99", parts[98], "s"), 0.5)]


def main() -> None:
    """Measure, and say it."""
    parser = report.arguments(__doc__)
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--one-round", action="store_true", help="of the first figures, as JSON")
    asked = parser.parse_args()
    collect_seldom()
    if asked.one_round:
        print(json.dumps(one_round(asked.steps)))
        return
    about = report.Report("Judging, all rules on, K = 4", "python bench/service_evaluation.py")
    about.notes += NOTES
    about.measures = [*in_memory(asked.steps, asked.rounds), *live(asked.seconds)]
    report.tell(about, asked.json)


if __name__ == "__main__":
    main()
