"""Runs programs in forked children of one process that has imported torch.

The runner starts it in the interpreter under test and writes one request per line, as JSON, to its
standard input: ``program``, ``folder`` (the working directory), ``hooks`` (the folder with the
hooks' ``sitecustomize`` or null), and ``children``, each with its ``stdout``, ``stderr`` and
``env``: one, or as many as the program has ranks. It answers with two lines: the process ids of
the children, then of each its wait status, seconds from the start, and peak memory in KiB.

A child executes the program in the module ``__main__`` and returns from ``main``, so that it ends
as any interpreter does: waiting for threads, ``atexit``, tear-down of modules. Imports nothing of
gradledger, and only what Python 3.10 has.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import json
import os
import select
import signal
import sys
import time
from typing import Any

PRELOADED = ("torch", "torch._dynamo", "torch.utils.data", "torch.distributed")
SAMPLED_SECONDS = 0.05  # between two looks at the threads of a program
MADV_POPULATE_READ = 22  # of Linux 5.14: map every page of a range, and read those of a file


def main() -> None:
    """Serve until standard input ends; returns in every child too, after its program."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, for all that it starts
    gc.disable()  # it would take a quarter of the time, and nearly all objects of imports stay
    for name in PRELOADED:
        __import__(name)
    gc.collect()
    gc.freeze()  # else each child copies all of torch's pages when it ends, for nearly a second
    gc.enable()
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        began = time.monotonic()
        running = []
        for child in request["children"]:
            running.append(os.fork())
            if running[-1] == 0:
                _run(request, child)
                return
        _answer(running)
        _answer([end_of(process, began) for process in running])


def _map_libraries() -> None:
    """Map all pages of the libraries, as parts of the resident memory of every child.

    A forked child maps a page of a file at its first access, with a number of adjacent pages that
    the file system chooses. Without this function, the peak of a child depends on the pages of
    torch that it accesses first, which hides the memory of the program itself. A kernel without
    this advice refuses it; measurements are then noisy.
    """
    advise = ctypes.CDLL(None).madvise
    with open("/proc/self/maps", encoding="utf-8") as file:
        ranges = [line.split()[0] for line in file if ".so" in line]
    for start, _, end in (text.partition("-") for text in ranges):
        length = int(end, 16) - int(start, 16)
        advise(ctypes.c_void_p(int(start, 16)), ctypes.c_size_t(length), MADV_POPULATE_READ)


def end_of(process: int, began: float) -> tuple[int, float, int]:
    """Wait for a child: its wait status, its seconds, and its peak of resident memory in KiB.

    The time for which its threads were ready to run and had no processor is not counted: that is
    the load of the machine. What is left is at least its CPU time.
    """
    delays: dict[str, float] = {}  # of each thread, also of those that have ended
    descriptor = os.pidfd_open(process)
    while not select.select([descriptor], [], [], SAMPLED_SECONDS)[0]:
        delays.update(_delays(process))
    os.close(descriptor)
    delays.update(_delays(process))
    seconds = time.monotonic() - began
    _, status, usage = os.wait4(process, 0)
    used = min(seconds, usage.ru_utime + usage.ru_stime)
    return status, max(used, seconds - sum(delays.values())), usage.ru_maxrss


def _delays(process: int) -> dict[str, float]:
    """The seconds for which each of its threads waited for a processor so far."""
    delays = {}
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/schedstat", encoding="ascii") as file:
                delays[thread] = int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):  # a thread that ended, or a kernel that does not count it
        pass
    return delays


def _answer(value: Any) -> None:
    print(json.dumps(value), flush=True)


def _run(request: dict[str, Any], child: dict[str, Any]) -> None:
    """In the child: reach the state of ``python PROGRAM`` right after ``import torch``."""
    os.setsid()
    _map_libraries()
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
    """Do what the ``sitecustomize`` of the hooks does at the start of an interpreter."""
    sys.path.insert(0, folder)
    import gradledger_autostart  # type: ignore[import-not-found]

    sys.path.remove(folder)
    gradledger_autostart.install()  # torch is loaded, so they start now
