"""Decompression bombs: small bodies that expand to large ones, from four concurrent clients."""

from __future__ import annotations

import gzip
import http.client
import time
from collections.abc import Iterator

from attack.arena import LINES, Arena, Beside, Honest, in_threads
from attack.outcome import HANG_SECONDS, Outcome
from gradledger_monitor.common.zstd import zstd

CLIENTS = 4
BOMB_SECONDS = 20.0
RUN = b'{"type":"run","run":"bomb","name":"bomb","optimizers":["SGD"]}\n'
STEP = b'{"type":"step","optimizer":0,"step":%d,"time":1,"%s":[%s]}\n'


def _bodies() -> Iterator[tuple[str, bytes]]:
    """Bodies with their encodings."""
    refused = b"{}\n" * 10_000_000
    yield "gzip", gzip.compress(refused, 9)
    yield "zstd", zstd.compress(refused)
    yield "gzip", gzip.compress(bytes(2**30), 9)
    yield "zstd", zstd.compress(bytes(2**30))
    yield "gzip", gzip.compress(RUN) + gzip.compress(b"") * 1_000_000
    yield "gzip", gzip.compress(RUN + b"\n" * 30_000_000, 9)
    yield "gzip", gzip.compress(RUN + b"{}\n" * 45_000, 9)
    for name, value in ((b"micro_batches", b"{}"), (b"lrs", b"1"), (b"lrs", b'"NaN"')):
        line = STEP % (1, name, b",".join([value] * 65_000))
        yield "gzip", gzip.compress(RUN + line * (30 * 2**20 // len(line)), 6)
    deep = b'{"type":"run","run":"deep","name":"deep","config":' + b'{"a":' * 5_000_000
    yield "gzip", gzip.compress(deep, 6)
    runs = (b'{"type":"run","run":"b%d","name":"b","optimizers":[]}\n' % n for n in range(40_000))
    yield "gzip", gzip.compress(b"".join(runs), 6)


def attack(arena: Arena) -> Iterator[Outcome]:
    """Send each bomb from several clients, while a well-behaved client continues."""
    outcome = Outcome("decompression and refusal bombs", memory_bound=700 * 2**20)
    bodies = list(_bodies())
    with arena.service(outcome) as service, Beside(service, outcome):

        def throw(number: int) -> None:
            bomber = Honest(service.port, "bomber", outcome)
            for encoding, body in bodies[number % 2 :: 2]:
                _throw(bomber, outcome, encoding, body)

        in_threads(CLIENTS, throw)
    yield outcome


def _throw(bomber: Honest, outcome: Outcome, encoding: str, body: bytes) -> None:
    """Send one bomb. It may wait for a worker, and decoding and storing take bounded time."""
    connection = http.client.HTTPConnection("127.0.0.1", bomber.port, timeout=60)
    began = time.monotonic()
    headers = {**LINES, "Content-Encoding": encoding}
    connection.request("POST", "/api/v1/records", body, headers)
    status = connection.getresponse().status
    connection.close()
    seconds = time.monotonic() - began
    outcome.answered(status, min(seconds, HANG_SECONDS))
    if seconds > BOMB_SECONDS:
        outcome.fault(f"a bomb was answered after {seconds:.0f} s")
    if status not in (200, 400, 413, 422, 429):
        outcome.fault(f"a bomb was answered {status}")
