"""The command ``gradledger``: ``run`` itself, everything else handed to the monitor.

``run`` must work in a training environment that has the hooks alone: standard library only.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import subprocess
import sys

import gradledger
from gradledger import autostart
from gradledger.autostart import unreachable
from gradledger.stderr import write_line

HELP = """\
usage: gradledger COMMAND ...

Names the silent gradient-accumulation bugs of a PyTorch training run.

in a training environment:
  run         start any command with the hooks on, its children too

with the monitor (pip install 'gradledger[monitor]'):
  check       run a command for a few steps and judge it here and now
  serve       the service and its dashboard
  import      store a spool, an export, or the log of another tool
  export      write a run to a file that any other store takes in
  postmortem  write down what went wrong in a run, when and at what cost
  replay      judge a stored run once more, with other thresholds
  compare     hold two runs against each other: did the balance move?
  acknowledge mark a finding as known, with a note
  rules       the catalogue of what is looked for
  token       create, list and revoke the tokens that the service asks for
  db          upgrade the database, make room in it, see what is in it
  alerts      try channels out, see what was sent, send it again
  config      every setting of the service, and where its value comes from
  demo        see a real bug being named, live

`gradledger COMMAND --help` tells more of each.
"""
RUN = re.compile(r"[A-Za-z0-9._-]{1,120}")


def main() -> int:
    """What the console script calls."""
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
        case [command, *_]:
            return _monitor(command)
    raise AssertionError("all command lines are covered")


def run(argv: list[str]) -> int:
    """Become the command: its signals, output and exit status are then its own."""
    parser = _parser()
    options = parser.parse_args(argv)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("which command? gradledger run -- python train.py")
    env = autostart.environment(
        os.environ, command, name=options.name, project=options.project, url=options.url
    )
    if options.tag:
        env["GRADLEDGER_TAGS"] = ",".join(options.tag)
    if not RUN.fullmatch(env["GRADLEDGER_RUN"]):
        parser.error("GRADLEDGER_RUN: up to 120 letters, digits, '.', '_' and '-'")
    if why := unreachable.reason(command):
        write_line(why)
    return _become(command, env)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradledger run",
        usage="gradledger run [--name N] [--project P] [--tag T] [--url URL] -- COMMAND ...",
        description="Start any command with the hooks on; torchrun and accelerate launch too.",
        allow_abbrev=False,
    )
    parser.add_argument("--name", help="what to call the run (default: the script's name)")
    parser.add_argument("--project", help="what it belongs to")
    parser.add_argument("--tag", action="append", help="a word to find it by; may be repeated")
    parser.add_argument("--url", help="where the service listens (default http://127.0.0.1:4777)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _become(command: list[str], env: dict[str, str]) -> int:
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        if os.name == "nt":  # `exec` would start the command beside us and end us at once
            return subprocess.call(command, env=env)
        os.execvpe(command[0], command, env)
    except OSError as error:
        write_line(f"run: {command[0]}: {error.strerror}")
        return 126 if isinstance(error, PermissionError) else 127  # as a shell says it


def _monitor(command: str) -> int:
    try:
        cli = importlib.import_module("gradledger_monitor.cli")
    except ModuleNotFoundError as missing:
        needs = "this command needs the monitor: pip install 'gradledger[monitor]'"
        print(f"gradledger {command}: {needs} ({missing})", file=sys.stderr)
        return 2
    cli.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
