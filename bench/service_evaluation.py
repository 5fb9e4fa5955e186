"""How fast steps are evaluated, and how soon after they arrive.

    python bench/service_evaluation.py [--steps 5000] [--rounds 7] [--seconds 20] [--json FILE]

All rules are on. The first values are for facts, rules and charted values of records in memory,
steps of one optimizer with K micro-batches, on one CPU: a plain loop, a loop with a GradScaler and
clipping, and a loop with unequal token weights, which has a finding in every step. Decoding alone
is measured in the same rounds. Each round runs in a separate process; after `make compiled`, a
process with facts and rules in C follows each. The lag is measured on a service in a separate
process, to which four clients send 2,000 records per second in batches of 50: from sending a batch
until the database has its last step as evaluated.
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
from gradledger_monitor.evaluation.evaluated_step import EvaluatedStep
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.evaluation.step_completeness import ArrivedStep
from gradledger_monitor.ingest import decode, schema
from gradledger_monitor.model import step_facts
from gradledger_monitor.workers.gc_tuning import collect_seldom
from helpers.batches import batch, fair_step, step
from helpers.service import Service, running_service

NOTES = [
    "The interpreter limits facts and rules in Python; if compiled, the cost of Python objects "
    "does: attributes of records, floats, lists. Facts that several rules share are computed "
    "once, facts that nearly all rules need are computed in advance, and facts that no rule or "
    "chart needs are not computed. The text of a finding is built only for the step that is "
    "shown.",
    "Most of the lag comes from evaluating four runs one after the other. Each evaluation pass "
    "has a transaction that waits for the disk, and batches have priority.",
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


def decoded(make_step: Callable[[int], StepRecord], steps: int) -> list[schema.StepRecord]:
    """Records as the service holds them."""
    (sent,) = decode.read(batch("bench", map(make_step, range(1, steps + 1)))).processes
    return [line for _, line in sent.records if isinstance(line, schema.StepRecord)]


# ---------------------------------------------------------------------- in memory


def evaluate(records: list[schema.StepRecord]) -> float:
    """Steps a second of CPU."""
    info = step_facts.RunInfo("bench", "bench", 1, ["SGD"])
    state = RunState(info)
    began = time.process_time()
    for record in records:
        evaluated = state.add_step(ArrivedStep(0, record.step, record.time, {0: record}))
        assert evaluated is not None
        EvaluatedStep.of(evaluated)  # the figures that are charted
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
    "a finding in every step": unequal,
}
DECODED = "decoded"


def one_round(steps: int) -> dict[str, float]:
    """Steps a second of all kinds, in this process."""
    records = {kind: decoded(make_step, steps) for kind, make_step in KINDS.items()}
    return {
        DECODED: decode_alone(records["a plain loop"]),
        **{kind: evaluate(some) for kind, some in records.items()},
    }


def in_memory(steps: int, rounds: int) -> list[report.Measure]:
    """All kinds and builds in each round."""
    rates_by_kind: dict[str, list[float]] = {}
    for _ in range(rounds):
        for build, environment in builds.available().items():
            rates = builds.run_json(environment, __file__, "--steps", str(steps), "--one-round")
            for kind, rate in rates.items():
                rates_by_kind.setdefault(kind + build, []).append(rate)
    alone = f"{statistics.median(rates_by_kind[DECODED]):,.0f} steps/s decoded"
    evaluated_rates = {
        name: rates for name, rates in rates_by_kind.items() if not name.startswith(DECODED)
    }
    took = [
        _rate(f"facts and rules, {name}", rates, alone) for name, rates in evaluated_rates.items()
    ]
    took += [pays(kind, rates_by_kind) for kind in KINDS if kind + builds.COMPILED in rates_by_kind]
    called = {kind: calls(decoded(make_step, 1_000)) for kind, make_step in KINDS.items()}
    return took + [report.Measure(f"function calls, {k}", n, "per step") for k, n in called.items()]


def pays(kind: str, rates_by_kind: dict[str, list[float]]) -> report.Measure:
    """How much faster the compiled rules are, round by round."""
    pairs = zip(rates_by_kind[kind + builds.COMPILED], rates_by_kind[kind], strict=True)
    low, middle, high = statistics.quantiles([fast / slow for fast, slow in pairs], n=4)
    name, goal = f"compiled, relative to Python: {kind}", 2.0
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
    connection = sqlite3.connect(database)
    query = "SELECT id, step FROM progress JOIN runs ON runs.key = progress.run"
    waits: list[float] = []
    open_ones = {client.run_id: client for client in clients}
    waiting = True
    while waiting or any(client.is_alive() for client in clients):
        time.sleep(0.01)
        now = time.perf_counter()
        for run, reached in connection.execute(query):
            sent = open_ones[run].sent
            over = [last for last in list(sent) if last <= reached]
            waits += [now - sent.pop(last) for last in over]
        waiting = any(client.sent for client in clients)
    connection.close()
    return waits


def live(seconds: float) -> list[report.Measure]:
    """Median and the slowest hundredth."""
    waits = lags(seconds)
    parts = statistics.quantiles(waits, n=100)
    half = report.median_of(
        f"lag at {PER_SECOND:,} records/s", waits, "s", f"{len(waits)} batches", 0.5
    )
    return [half, report.below(report.Measure("p99 of the lag", parts[98], "s"), 0.5)]


def main() -> None:
    """Measure everything and publish the results."""
    parser = report.arguments(__doc__)
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--one-round", action="store_true", help="of the first figures, as JSON")
    options = parser.parse_args()
    collect_seldom()
    if options.one_round:
        print(json.dumps(one_round(options.steps)))
        return
    about = report.Report("Evaluation, all rules on, K = 4", "python bench/service_evaluation.py")
    about.notes += NOTES
    about.measures = [*in_memory(options.steps, options.rounds), *live(options.seconds)]
    report.publish(about, options.json)


if __name__ == "__main__":
    main()
