"""The command ``gradledger``: implements ``run``, and passes all other commands to the monitor.

``run`` must work in a training environment without the monitor: it uses the standard library only.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys

import gradledger
from gradledger import autostart
from gradledger.autostart import unreachable
from gradledger.settings import parse_url
from gradledger.stderr import write_line

HELP = """\
usage: gradledger COMMAND ...

Finds silent gradient-accumulation bugs in PyTorch training runs.

In a training environment:
  run         Start a command and its child processes with the hooks on
  doctor      Check versions, hooks, service, token, clock and spool

With the monitor (pip install 'gradledger[monitor]'):
  check       Run a command and report what is wrong with its training
  serve       Start the service and its dashboard
  import      Import a spool, an export, or the log of another tool
  export      Write a run to a file that another database can import
  postmortem  Write a report: what went wrong in a run, when, and its cost
  replay      Evaluate a stored run again, with other thresholds
  compare     Compare two runs: did the balance change?
  acknowledge Acknowledge a finding, with a note
  rules       List the rules
  token       Create, list and revoke access tokens
  db          Upgrade, prune and inspect the database
  alerts      Test channels, list alerts, send alerts again
  config      List all settings of the service and their sources
  demo        Watch a run with a real bug, live

`gradledger COMMAND --help` describes a command.
"""


def main() -> int:
    """The entry point of the console script."""
    match sys.argv[1:]:
        case []:
            print(HELP, end="", file=sys.stderr)
            return 2
        case ["-h" | "--help", *_]:
            print(HELP, end="")
            return 0
        case ["--version", *_]:
            print(f"gradledger {gradledger.__version__}")
            return 0
        case ["run", *rest]:
            return run(rest)
        case ["doctor", *rest]:
            return _doctor(rest)
        case [command, *_]:
            return _monitor(command)
    raise AssertionError("unreachable: the cases cover all command lines")


def run(argv: list[str]) -> int:
    """Replace this process by the command, with the hooks on."""
    parser = _parser()
    options = parser.parse_args(argv)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("COMMAND is missing. Example: gradledger run -- python train.py")
    if options.url is not None:
        try:
            parse_url(options.url)
        except ValueError as error:
            parser.error(f"--{error}")
    command = autostart.with_python(command)
    env = autostart.environment(
        os.environ, command, name=options.name, project=options.project, url=options.url
    )
    if options.tag:
        env["GRADLEDGER_TAGS"] = ",".join(options.tag)
    env.setdefault("GRADLEDGER_SUMMARY", "on")
    run_id = env["GRADLEDGER_RUN"]
    if not autostart.RUN_ID.fullmatch(run_id):
        parser.error(f"GRADLEDGER_RUN={run_id!r} is invalid: use {autostart.RUN_ID_FORMAT}")
    if reason := unreachable.reason(command):
        write_line(reason)
    return _exec(command, env)


def _doctor(argv: list[str]) -> int:
    argparse.ArgumentParser(
        prog="gradledger doctor",
        description="Check versions, hooks, service, token, clock and spool.",
    ).parse_args(argv)
    try:
        return importlib.import_module("gradledger.doctor").main()  # type: ignore[no-any-return]
    except BrokenPipeError:  # `gradledger doctor | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradledger run",
        usage="gradledger run [--name N] [--project P] [--tag T] [--url URL] -- COMMAND ...",
        description="Start a command and its child processes with the hooks on, "
        "including torchrun and accelerate launch.",
        allow_abbrev=False,
    )
    parser.add_argument("--name", help="name of the run (default: name of the script)")
    parser.add_argument("--project", help="project of the run")
    parser.add_argument("--tag", action="append", help="tag of the run; repeatable")
    parser.add_argument("--url", help="URL of the service (default: http://127.0.0.1:4777)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _exec(command: list[str], env: dict[str, str]) -> int:
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        if os.name == "nt":  # there, exec starts a second process and ends this one
            return subprocess.call(command, env=env)
        os.execvpe(command[0], command, env)
    except OSError as error:
        write_line(f"run: {command[0]}: {error.strerror}")
        return 126 if isinstance(error, PermissionError) else 127  # as a shell does


def _monitor(command: str) -> int:
    try:
        cli = importlib.import_module("gradledger_monitor.cli")
    except ModuleNotFoundError as missing:
        message = "this command needs the monitor. Run pip install 'gradledger[monitor]'"
        print(f"gradledger {command}: {message} ({missing})", file=sys.stderr)
        return 2
    cli.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
