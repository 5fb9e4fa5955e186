"""Runs programs in forked children of one process that has imported torch already.

The runner starts it in the interpreter under test and writes one request per line, as JSON, to its
standard input: ``program``, ``folder`` (the working directory), ``hooks`` (the folder with the
hooks' ``sitecustomize`` or null), and ``children``, each with its ``stdout``, ``stderr`` and
``env``: one, or as many as the program has ranks. It answers with two lines: the process ids of
the children, then of each its wait status, and seconds from the start and peak memory in KiB.

A child executes the program in the module ``__main__`` and returns from ``main``, so that it ends
as any interpreter does: waiting for threads, ``atexit``, tear-down of modules. Imports nothing of
gradledger, and only what Python 3.10 has.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import json
import mmap
import os
import resource
import sys
import time
from typing import Any

PRELOADED = ("torch", "torch._dynamo", "torch.utils.data", "torch.distributed")
MOST_CHILDREN = 64


def main() -> None:
    """Serve until standard input ends; returns in every child too, after its program."""
    for name in PRELOADED:
        __import__(name)
    gc.collect()
    gc.freeze()  # else each child copies all of torch's pages when it ends, for nearly a second
    peaks = mmap.mmap(-1, 8 * MOST_CHILDREN)  # shared with the children
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        began = time.monotonic()
        peaks[:] = bytes(len(peaks))
        running = []
        for number, child in enumerate(request["children"]):
            running.append(os.fork())
            if running[-1] == 0:
                atexit.register(_note_peak, peaks, 8 * number)  # the first one runs last
                _run(request, child)
                return
        _answer(running)
        ends = [end_of(process, began) for process in running]
        noted = [int.from_bytes(peaks[8 * n : 8 * n + 8], "little") for n in range(len(ends))]
        _answer(
            [
                (status, seconds, at or peak)
                for (status, seconds, peak), at in zip(ends, noted, strict=True)
            ]
        )


def _note_peak(peaks: mmap.mmap, offset: int) -> None:
    """Keep the peak of memory before modules are torn down.

    Tear-down touches tens of mebibytes of torch's files that a fork has not mapped yet, which would
    hide what a program took before. A child of the program, that also gets here, counts too.
    """
    before = int.from_bytes(peaks[offset : offset + 8], "little")
    peak = max(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    peaks[offset : offset + 8] = peak.to_bytes(8, "little")


def end_of(process: int, began: float) -> tuple[int, float, int]:
    """Wait for a child: its wait status, its seconds, and its peak of resident memory in KiB.

    The time for which its main thread was ready to run and had no processor is not counted: that
    is the load of the machine.
    """
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    seconds = time.monotonic() - began - _delay(process)
    _, status, usage = os.wait4(process, 0)
    return status, seconds, usage.ru_maxrss


def _delay(process: int) -> float:
    try:
        with open(f"/proc/{process}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):  # a kernel that does not count it
        return 0.0


def _answer(value: Any) -> None:
    print(json.dumps(value), flush=True)


def _run(request: dict[str, Any], child: dict[str, Any]) -> None:
    """In the child: become what ``python PROGRAM`` is right after ``import torch``."""
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(child["env"])
    _redirect(0, os.devnull, os.O_RDONLY)
    _redirect(1, child["stdout"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    _redirect(2, child["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    program = request["program"]
    sys.argv = [program]
    sys.path[0] = os.path.dirname(program)
    with open(program, encoding="utf-8") as source:
        code = compile(source.read(), program, "exec")
    namespace = vars(sys.modules["__main__"])
    namespace.clear()
    namespace.update(
        __name__="__main__", __file__=program, __builtins__=builtins, __doc__=None, __spec__=None
    )
    if request["hooks"]:
        _start_hooks(request["hooks"])
    exec(code, namespace)


def _redirect(descriptor: int, path: str, flags: int) -> None:
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, descriptor)
    os.close(opened)


def _start_hooks(folder: str) -> None:
    """What the hooks' ``sitecustomize`` does in an interpreter that starts."""
    sys.path.insert(0, folder)
    import gradledger_autostart  # type: ignore[import-not-found]

    sys.path.remove(folder)
    gradledger_autostart.arm()  # torch is there: they start now
