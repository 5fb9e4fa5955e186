"""Services in the states that pages must look right in: empty, one run, and everything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from sqlalchemy import insert, select, update

from gradledger.records import MicroBatch, StepRecord
from gradledger_monitor.evaluation.evaluated_step import EvaluatedStep
from gradledger_monitor.store import tables
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.steps import curves
from helpers import http
from helpers.batches import batch, eventually, fair_step, step
from helpers.patience import HANGS
from helpers.receiver import Receiver, receiving
from helpers.seeded import judged, seed
from helpers.sending import new_store
from helpers.service import Service, running_service

TESTS = Path(__file__).parents[1]
DEMO = ("-m", "gradledger_monitor.demo.byte_lm", "--steps", "60", "--accumulate")
TRAININGS = {
    "byte-lm": (*DEMO, "mean-of-means"),
    "byte-lm-corrected": (*DEMO, "token-mean"),
    "diverged": ("museum/exhibits/norm/rate_beyond_the_stable_limit.py",),
    "deep-sigmoid": ("museum/exhibits/norm/sigmoid_in_every_layer.py",),
    "fp16-scaler": ("museum/exhibits/scaler/guard_skips_update.py",),
    "four-ranks": ("torchrun", "4", "museum/exhibits/ddp/head_in_the_wrong_group.py"),
}
LOG = TESTS / "fixtures" / "logs" / "trainer"
MANY, RANKS, LONG, SPIKE = 10_000, 1_024, 30_000, 17_023
SENT = range(1, 101)  # the steps of the long run that are sent and evaluated
HIDDEN = "the loss is inside torch.compile"


@contextmanager
def empty(folder: Path) -> Iterator[Service]:
    """A service that nothing was ever sent to."""
    with running_service(folder / "empty.db") as service:
        yield service


@contextmanager
def one_run(folder: Path) -> Iterator[Service]:
    """A service with one healthy run."""
    with running_service(folder / "one.db") as service:
        service.post(batch("only", [fair_step(n) for n in range(1, 41)], name="my first run"))
        assert eventually(HANGS, judged(service, "only", 40))
        yield service


@contextmanager
def many_runs(folder: Path) -> Iterator[Service]:
    """A service with 10,000 runs: rows of one that was evaluated, with other names and times."""
    path = folder / "many.db"
    store = new_store(path)
    with running_service(path) as service:
        for run, make in (("wrong", step), ("right", fair_step)):
            service.post(batch(run, [make(n) for n in range(1, 21)], name=run))
            assert eventually(HANGS, judged(service, run, 20))
        _multiply(store, time.time())
        yield service


def _multiply(store: Store, now: float) -> None:
    runs, findings = tables.runs, tables.findings
    with store.writing() as connection:
        originals = [dict(row._mapping) for row in connection.execute(select(runs))]
        finding_rows = [dict(row._mapping) for row in connection.execute(select(findings))]
        rows, copies = [], []
        for number in range(MANY):
            original = originals[number % len(originals)]
            key = 1_000 + number
            age = number * 337.0
            changes = {"key": key, "id": f"trial-{number:05}", "name": f"sweep-{number % 97:02}"}
            times = {"started": now - age - 900, "last_seen": now - age, "ended": True}
            config = {"config": {"lr": round(1e-4 * (1 + number % 9), 6), "seed": number}}
            rows.append({**original, **changes, **times, **config, "project": "sweep"})
            copies += [{**f, "run": key} for f in finding_rows if f["run"] == original["key"]]
        connection.execute(insert(runs), rows)
        connection.execute(insert(findings), copies)


def _discuss(service: Service) -> None:
    """Comments on the findings of a rule, which are assigned."""
    url = f"{service.url}/api/v1/findings/reduction.token_weights_unequal/comments"
    text = "Every run since the new collator. The count that it returns is that of the last batch."
    http.post(url, json={"text": text, "by": "Ada"})
    http.post(url, json={"text": "", "by": "Ada", "assignee": "Ben"})
    known = {"note": "The data of this run overflows.", "by": "Ben"}
    address = f"{service.url}/runs/half/findings/scaler.skipped_steps/acknowledgement"
    http.post(address, data=known, headers={"Origin": service.url})


def _alerting(path: Path, receiver: Receiver) -> AbstractContextManager[Service]:
    """A service that sends its findings, and one of whose channels is never reached."""
    unreachable = {"name": "pager", "url": "http://127.0.0.1:9/hook"}
    channels = json.dumps([receiver.channel("on-call"), unreachable])
    return running_service(path, alert_channels=channels, alert_networks="127.0.0.0/8")


@contextmanager
def everything(folder: Path) -> Iterator[Service]:
    """A service with real trainings, an imported log, and runs that are long, wide or broken."""
    path = folder / "everything.db"
    with receiving(folder / "receiver") as receiver, _alerting(path, receiver) as service:
        for name, command in TRAININGS.items():
            train(service, name, command)
        run_command(["import", LOG, "--db", f"sqlite:///{path}"], check=True)
        seed(service)
        for run in ("wrong", "right", "half"):
            assert eventually(HANGS, judged(service, run))
        unseen = MicroBatch(loss=1.0, missing={"terms": HIDDEN})
        now = time.time()
        hidden = [StepRecord(0, n, now - 40 + n, [unseen]) for n in range(1, 41)]
        service.post(batch("incomplete", hidden, name="compiled loss", started=now - 40))
        _wide(service, now)
        _restarted(service, now)
        _discuss(service)
        service.post(batch("long", [_of_long(n, now) for n in SENT], name="long pretraining"))
        assert eventually(HANGS, judged(service, "long", len(SENT)))
        _lengthen(f"sqlite:///{path}", now)
        yield service


def run_command(words: list[object], check: bool = False) -> None:
    """Run ``gradledger`` with these words."""
    folders = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": folders}
    command = [sys.executable, "-m", "gradledger.cli", *map(str, words)]
    subprocess.run(command, check=check, env=environment, cwd=TESTS)


def train(service: Service, name: str, command: tuple[str, ...]) -> None:
    """Run a real training under ``gradledger run``."""
    script = [sys.executable, *command]
    if command[0] == "torchrun":
        ranks = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={command[1]}"]
        script = [sys.executable, *ranks, *command[2:]]
    run_command(["run", "--url", service.url, "--name", name, "--project", "demo", "--", *script])


def _wide(service: Service, now: float) -> None:
    for rank in range(RANKS):
        records = [step(n, tokens=(10 + rank % 7, 30), sync="averaged") for n in range(1, 6)]
        for record in records:
            record.time = now - 5 + record.step
        if rank == 77:
            records = records[:3]
        fields = {"world_size": RANKS, "rank": rank, "started": now - 5, "name": "1,024 ranks"}
        service.post(batch("wide", records, **fields))


def _restarted(service: Service, now: float) -> None:
    """Three attempts of one job, the last on fewer ranks."""
    for number, (tokens, ranks) in enumerate((((10, 30), 4), ((20, 20), 4), ((20, 20), 2))):
        launcher = {"torchrun launch": "1f2e3d4c", "torchrun restarts": str(number)}
        fields = {"world_size": ranks, "started": now - 30 + 10 * number, "environment": launcher}
        for rank in range(ranks):
            records = [step(n, tokens=tokens, sync="averaged") for n in range(1, 6 + number)]
            run = f"20261130-030726-r4jx-78{number}"
            service.post(batch(run, records, rank=rank, name="restarted", **fields))


def _of_long(number: int, now: float) -> StepRecord:
    """A step of the long run."""
    record = fair_step(number)
    record.time, record.lr, record.norm = _figures(number, now)[:3]
    for micro_batch in record.micro_batches:
        micro_batch.loss = (micro_batch.loss or 0.0) * _figures(number, now)[3] / 2.0
    return record


def _figures(number: int, now: float) -> tuple[float, float, float, float]:
    """The time, learning rate, norm and loss of a step of the long run."""
    norm = 500.0 if number == SPIKE else 1 + number % 13 / 20
    return now - LONG + number, 1e-3, norm, 1.5 + 6 / (1 + number / 900) + number % 17 / 100


def _lengthen(url: str, now: float) -> None:
    """Make a run longer than what was sent of it: its last step, repeated with other figures."""
    store = Store(url)
    with store.reading() as connection:
        key = connection.scalars(select(tables.runs.c.key).where(tables.runs.c.id == "long")).one()
        of_run = select(tables.facts).where(tables.facts.c.run == key)
        last = connection.execute(of_run.order_by(tables.facts.c.step.desc())).first()
    assert last is not None
    rows = []
    for n in range(SENT[-1] + 1, LONG + 1):
        at, lr, norm, loss = _figures(n, now)
        figures = {"time": at, "lr": lr, "norm": norm, "loss_reported": loss, "loss_token": loss}
        rows.append({**last._mapping, **figures, "step": n})
    ends = [EvaluatedStep(0, n, 0.0, 1, {}) for n in (SENT[-1], LONG)]
    with store.writing() as connection:
        connection.execute(insert(tables.facts), rows)
        run = tables.progress.c.run == key
        connection.execute(update(tables.progress).where(run).values(step=LONG))
        whole = {"steps": LONG, "tokens": last.tokens * LONG, "started": now - LONG}
        connection.execute(update(tables.runs).where(tables.runs.c.key == key).values(**whole))
        curves.update_buckets(connection, key, ends)
    store.close()
