"""Plays the museum's scripts: torch is imported once, and every script runs in forks of that.

``Stage`` is for callers that play scripts; it owns a server process (this module as a
program), which forks one child per rank. A child watches its script in one of three
ways: ``records``, with the real hooks; ``in_part``, where they watch some of the steps; or
``witness``, without any of ours.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import TypeVar

from helpers import device
from helpers.patience import HANGS
from helpers.ports import reserved_port

T = TypeVar("T")
R = TypeVar("R")

TESTS = Path(__file__).parents[1]
Watch = Callable[[Path, Path], None]  # runs a script, writes what it saw


@dataclass(frozen=True)
class Played:
    """A script that ended: its exit statuses, its output, and what was recorded, by rank."""

    statuses: list[int]
    seconds: float
    printed: str
    recorded: list[bytes]

    @property
    def failed(self) -> bool:
        """Whether the script itself did not work."""
        return any(self.statuses)


class Stage:
    """A server process that plays one script at a time.

    It imports ``modules`` once, which else each script would import by itself.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "museum.stage", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def play(self, script: Path, ranks: int = 1, watch: str = "records") -> Played:
        """Run a script to its end, or for ``HANGS`` seconds."""
        assert self._server.stdin and self._server.stdout
        with tempfile.TemporaryDirectory() as folder:
            asked = {"script": str(script), "ranks": ranks, "watch": watch, "folder": folder}
            self._server.stdin.write(json.dumps(asked).encode() + b"\n")
            self._server.stdin.flush()
            answer = json.loads(self._server.stdout.readline())
            printed = "".join(p.read_text() for p in sorted(Path(folder).glob("*.txt")))
            recorded = [_read(Path(folder) / f"{rank}.seen") for rank in range(ranks)]
        return Played(answer["statuses"], answer["seconds"], printed, recorded)

    def close(self) -> None:
        """End the server."""
        assert self._server.stdin and self._server.stdout
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait(HANGS)


def on_stages(
    run: Callable[[Stage, T], R], items: Iterable[T], jobs: int, modules: Sequence[str] = ()
) -> Iterator[R]:
    """The results of all items in order, as they come; ``jobs`` stages run side by side."""
    stages: Queue[Stage] = Queue()
    for _ in range(jobs):
        stages.put(Stage(modules))

    def one(item: T) -> R:
        stage = stages.get()
        try:
            return run(stage, item)
        finally:
            stages.put(stage)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(one, items)
    while not stages.empty():
        stages.get().close()


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


# ---------------------------------------------------------------------- in the server


def serve() -> None:
    """Answer one line with one line until the input ends."""
    gc.disable()  # it would take a quarter of the time, and nearly all objects of imports stay
    from museum.watching import WATCHES  # noqa: PLC0415 - torch, in the server alone

    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # else the first collection in each child copies all pages with objects
    gc.enable()
    for line in sys.stdin:
        asked = json.loads(line)
        answer = _play(
            WATCHES[asked["watch"]], Path(asked["script"]), asked["ranks"], Path(asked["folder"])
        )
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _play(watch: Watch, script: Path, ranks: int, folder: Path) -> dict[str, object]:
    started, children = time.monotonic(), []
    with reserved_port() as port:
        launch = {"WORLD_SIZE": str(ranks), "MASTER_PORT": str(port)}
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                _child(watch, script, folder, rank, launch)
            children.append(pid)
        statuses = _wait(children, started + HANGS)
    return {"statuses": statuses, "seconds": round(time.monotonic() - started, 2)}


def _child(watch: Watch, script: Path, folder: Path, rank: int, launch: dict[str, str]) -> None:
    """Never returns; ``os._exit``, because gloo's threads may outlive the interpreter."""
    status = 1
    try:
        printed = os.open(folder / f"{rank}.txt", os.O_CREAT | os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(printed, stream)
        faulthandler.dump_traceback_later(HANGS * 0.9)  # where it hangs, if it does
        if launch["WORLD_SIZE"] != "1":
            group = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
            os.environ.update(launch | group)
        device.occupy()
        sys.argv = [str(script)]
        sys.path.insert(0, str(script.parent))
        watch(script, folder / f"{rank}.seen")
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(children: list[int], deadline: float) -> list[int]:
    """Exit statuses; ranks that are late, or left behind by a failed rank, are killed."""
    statuses: dict[int, int] = {}
    while len(statuses) < len(children):
        for pid in set(children) - set(statuses):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                statuses[pid] = os.waitstatus_to_exitcode(status)
        if any(statuses.values()) or time.monotonic() > deadline:
            for pid in set(children) - set(statuses):
                os.kill(pid, signal.SIGKILL)
                statuses[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        time.sleep(0.01)
    return [statuses[pid] for pid in children]


if __name__ == "__main__":
    serve()
