"""Starts Python processes as forks of a process that has imported their packages already.

``Python`` starts one, for tests whose subject is not the start of an interpreter. There are two
servers, ``SERVERS``: one has imported the service, one torch and the hooks. They serve all test
workers: pytest's first process calls ``launch``, and a server imports its packages at its first
request. For each request it forks a supervisor, which forks the program, waits for it, and answers
with its exit status.

A program begins in the state of ``python PROGRAM`` right after its imports; a service has what it
computes once for its pages. It has its own environment, working directory, ``sys.argv``,
``sys.path``, streams and session, and imports the ``sitecustomize`` of its ``PYTHONPATH``. At its
end it waits for threads, calls ``atexit`` functions and flushes its streams. The finalizers of
what the server imported are called and the modules torn down only if ``teardown`` is set, because
that copies torch's pages for a second.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import io
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

from helpers import stand_in
from helpers.stand_in import start

SERVERS = {
    "service": ("gradledger_monitor.cli", "gradledger_monitor.app", "helpers.page_caches"),
    "training": ("torch", "torch._dynamo", "torch.distributed.fsdp", "gradledger.session"),
}
FOLDER = "GRADLEDGER_TEST_FORKSERVERS"  # the environment variable with the folder of the sockets

# Not as the module `__main__`, which belongs to the programs.
_SERVE = f"""
import sys
sys.path[0] = {str(Path(__file__).parents[1])!r}
from helpers.forkserver import main
sys.path[0] = ""
main(sys.argv[1], int(sys.argv[2]))
"""


class Python:
    """A Python process, with the methods of ``subprocess.Popen`` that tests use.

    ``arguments`` are those of ``python``: a script or ``-m MODULE``, and its own. The output is
    text, in ``stdout`` and ``stderr``, or all in ``stdout`` if ``merged``.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        *,
        server: str = "training",
        merged: bool = False,
        teardown: bool = False,
    ) -> None:
        self.returncode: int | None = None
        pipes = [os.pipe() for _ in range(1 if merged else 2)]
        writers = [writer for _, writer in pipes]
        request = {
            "arguments": [str(argument) for argument in arguments],
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
            "teardown": teardown,
        }
        self._server = start(_folder() / server, request, [writers[0], writers[-1]])
        for writer in writers:
            os.close(writer)
        readers = [open(reader, errors="replace") for reader, _ in pipes]  # noqa: SIM115
        self.stdout, self.stderr = readers[0], readers[-1]
        self._answers = self._server.makefile("r")
        self.pid = self._answer()

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        if self.returncode is None and select.select([self._server], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status once it has ended. Raises ``subprocess.TimeoutExpired``."""
        if self.returncode is None:
            if not select.select([self._server], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("python", timeout or 0.0)
            self.returncode = self._answer()
            self._answers.close()
            self._server.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """The rest of the output once it has ended. Raises ``subprocess.TimeoutExpired``."""
        watchdog = threading.Timer(timeout or threading.TIMEOUT_MAX, self.kill)
        watchdog.start()
        streams = {self.stdout: "", self.stderr: ""}
        readers = [threading.Thread(target=_read, args=(stream, streams)) for stream in streams]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        self.wait()
        if not watchdog.is_alive():
            raise subprocess.TimeoutExpired("python", timeout or 0.0)
        watchdog.cancel()
        self._close()
        return streams[self.stdout], streams[self.stderr]

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def end_session(self) -> None:
        """Kill it, if it runs, and its children."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.wait()
        self._close()

    def _close(self) -> None:
        self.stdout.close()
        self.stderr.close()

    def _answer(self) -> int:
        line = self._answers.readline()
        if not line:
            raise RuntimeError("the fork server ended")
        return int(line)


def run(
    arguments: Sequence[object],
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    timeout: float | None = None,
    *,
    server: str = "training",
    teardown: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a process to its end, as ``subprocess.run``. Raises ``subprocess.TimeoutExpired``."""
    process = Python(arguments, env, cwd, server=server, teardown=teardown)
    try:
        out, err = process.communicate(timeout)
    finally:
        process.end_session()
    return subprocess.CompletedProcess([*map(str, arguments)], process.wait(), out, err)


def executable(folder: Path, server: str = "training") -> Path:
    """A program ``python`` whose process is a fork, for a command that starts Python by itself.

    It passes on SIGINT and SIGTERM, and ends as the fork does. ``PYTHON_EXEC`` names the program
    with which torchrun starts ranks.
    """
    path = folder / "python"
    command = shlex.join([sys.executable, "-IS", stand_in.__file__, str(_folder() / server)])
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)
    return path


def launch() -> Callable[[], None]:
    """Start the servers, for this process and those that inherit its environment.

    Returns a function that ends them. If this process is killed, they end, too.
    """
    stack = ExitStack()
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gl-fork-"))
    for name in SERVERS:
        address = str(Path(folder) / name)
        with socket.create_server(address, family=socket.AF_UNIX, backlog=128) as listener:
            server = subprocess.Popen(
                [sys.executable, "-c", _SERVE, name, str(listener.fileno())],
                stdin=subprocess.PIPE,  # they end when it is closed
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                pass_fds=[listener.fileno()],
            )
        stack.callback(server.communicate)
    os.environ[FOLDER] = folder
    stack.callback(os.environ.pop, FOLDER)
    return stack.close


def _folder() -> Path:
    if FOLDER not in os.environ:  # outside of pytest
        atexit.register(launch())
    return Path(os.environ[FOLDER])


def _read(stream: io.TextIOWrapper, into: dict[io.TextIOWrapper, str]) -> None:
    into[stream] = stream.read()


# ---------------------------------------------------------------------- in the server


def main(name: str, descriptor: int) -> None:
    """Serve until standard input ends; returns in a program that is to be torn down."""
    signal.signal(signal.SIGCHLD, _reap)
    listener = socket.socket(fileno=descriptor)
    loaded = False
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection = listener.accept()[0]
        if not loaded:
            _load(SERVERS[name])
            loaded = True
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _supervise(connection)
            return
        connection.close()
    os._exit(0)  # no tear-down, in which C++ modules would report frozen objects as leaks


def _reap(*_: object) -> None:
    """Wait for ended supervisors, so that this process is charged for the time of programs."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _load(modules: Sequence[str]) -> None:
    gc.disable()  # it would take a quarter of the time, and nearly all objects of imports stay
    for module in modules:
        with suppress(ModuleNotFoundError):  # an environment without torch
            __import__(module)
    gc.collect()
    gc.freeze()  # else the first collection in each child copies all pages with objects
    gc.enable()


def _supervise(connection: socket.socket) -> None:
    """Fork the program and wait for its end. Returns in a program that is to be torn down."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 2)
    with connection.makefile("r") as lines:
        request = json.loads(lines.readline())
    program = os.fork()
    if program == 0:
        connection.close()
        _run(request, streams)
        return
    for stream in streams:
        os.close(stream)
    with connection:
        connection.sendall(b"%d\n" % program)
        status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        with suppress(BrokenPipeError):  # the test has ended
            connection.sendall(b"%d\n" % status)
    os._exit(0)


def _run(request: dict[str, Any], streams: Sequence[int]) -> None:
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    _open_streams(streams)
    _import_sitecustomize()
    if request["teardown"]:
        gc.unfreeze()  # the tear-down collects everything, else C++ modules report leaks
        _execute(*request["arguments"])
    else:
        for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
            finalizer.atexit = False  # of torch's operators: half the time of a short program
        _execute_and_exit(request["arguments"])


def _import_sitecustomize() -> None:
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [folder for folder in path if folder and folder not in sys.path]
    if any(os.path.exists(os.path.join(folder, "sitecustomize.py")) for folder in path):
        sys.modules.pop("sitecustomize", None)
        __import__("sitecustomize")


def _execute(program: str, *arguments: str) -> None:
    if program == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = list(arguments)
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    sys.argv = [program, *arguments]
    code = compile(Path(program).read_text(), program, "exec", dont_inherit=True)
    namespace = vars(sys.modules["__main__"])
    namespace.clear()
    namespace.update(
        __name__="__main__", __file__=program, __builtins__=builtins, __doc__=None, __spec__=None
    )
    exec(code, namespace)


def _execute_and_exit(arguments: Sequence[str]) -> NoReturn:
    """End as an interpreter does, except for the tear-down of modules."""
    status = 0
    try:
        _execute(*arguments)
    except SystemExit as exit:
        status = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        if status and not isinstance(exit.code, int):
            sys.stderr.write(f"{exit.code}\n")
    except BaseException as error:
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in ("stdout", "stderr"):
        with suppress(Exception):  # a program may delete or close it
            getattr(sys, stream).flush()
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


def _open_streams(streams: Sequence[int]) -> None:
    """Give the program its streams, buffered as those of ``python`` with pipes."""
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((null, *streams)):
        os.dup2(source, target)
    for descriptor in {null, *streams} - {0, 1, 2}:
        os.close(descriptor)
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc] # noqa: SIM115
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        text = io.TextIOWrapper(
            open(descriptor, "wb", closefd=False),  # noqa: SIM115
            errors="backslashreplace" if descriptor == 2 else "strict",
            line_buffering=descriptor == 2,
            write_through=unbuffered,
        )
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
