"""What a training step costs the training thread while a service hangs, refuses or is not there.

Trains the demo's byte-level transformer for blocks of windows, the ways in turn: without hooks, and
with them and a service that takes everything, that answers 503, that accepts and never answers, or
that does not exist. Services are processes of their own; what cannot be sent goes to a spool.

Prints, by way, the median and the middle half of a step's own processor time (time.thread_time) and
of its time on the clock, which other processes lengthen too. The ways with hooks should not differ
by more than their middle halves. Give the number of rounds as an argument; what is said on standard
error is that records wait in the spool.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

import gradledger
from gradledger_monitor.demo import byte_lm

STEPS = 20  # in a block
WARM_UP = 4  # of each
LENGTH = 32  # bytes of each text

SERVICE = """
import http.server, json, socket, sys
kind = sys.argv[1]
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        text = json.dumps({"stored": 1, "duplicates": 0}).encode()
        self.send_response(200 if kind == "takes" else 503)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *about):
        pass
if kind == "hangs":
    listening, kept = socket.create_server(("127.0.0.1", 0)), []
    print(listening.getsockname()[1], flush=True)
    while True:
        kept.append(listening.accept())
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
WAYS = ("without hooks", "takes", "refuses", "hangs", "is not there")

Times = tuple[list[float], list[float]]  # milliseconds of each step: processor, clock


@contextmanager
def service(kind: str) -> Iterator[str]:
    """The address of a service of that kind."""
    if kind == "is not there":
        yield "http://127.0.0.1:9"
        return
    command = [sys.executable, "-c", SERVICE, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.terminate()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, times: Times) -> None:
    """A block of steps, each as the demo takes it; the first ones are not noted."""
    pieces = byte_lm.micro_batches(seed=0)
    for number in range(STEPS):
        window = [next(pieces) for _ in range(byte_lm.MICRO_BATCHES)]
        cut = [(text[:, :LENGTH], following[:, :LENGTH]) for text, following in window]
        busy, clock = time.thread_time(), time.perf_counter()
        byte_lm.token_mean(model, cut)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if number >= WARM_UP:
            times[0].append((time.thread_time() - busy) * 1e3)
            times[1].append((time.perf_counter() - clock) * 1e3)


def block(way: str, times: Times) -> None:
    """One block of one way."""
    model = byte_lm.ByteTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    if way == "without hooks":
        train(model, optimizer, times)
        return
    with service(way) as url, gradledger.watch(model, optimizer, url=url):
        train(model, optimizer, times)


def line(name: str, values: list[float]) -> str:
    """The median, and the middle half."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{name} {middle:7.2f} ms ({low:.2f} to {high:.2f})"


def main() -> None:
    """Measure in turn, so that whatever else the machine does hits all ways alike."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    taken: dict[str, Times] = {way: ([], []) for way in WAYS}
    with tempfile.TemporaryDirectory() as spool:
        os.environ["GRADLEDGER_SPOOL"] = spool
        for number in range(rounds):
            for way in WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]:
                block(way, taken[way])
    for way, (busy, clock) in taken.items():
        print(f"{way:14s} {line('processor', busy)}   {line('clock', clock)}")


if __name__ == "__main__":
    main()
