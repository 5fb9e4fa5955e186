"""``gradledger demo``: train a classic accumulation bug and its fix under a service."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from gradledger import autostart
from gradledger_monitor.demo import SCRIPT
from gradledger_monitor.demo.outcome import DemoResult, NotEvaluated, result_text, wait_for_result
from gradledger_monitor.demo.service import Daemon, DaemonFailed, daemon
from gradledger_monitor.reports.terminal import console

STEPS = 80
UNEQUAL = "reduction.token_weights_unequal"
DEFAULT_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # the dashboard stays responsive on two cores
    "PYTHONWARNINGS": "ignore:Failed to initialize NumPy",  # PyTorch warns where NumPy is absent
}


class DemoFailed(Exception):
    """A training of the demo failed, or its verdict is not the expected one."""


def demo(
    exit_: Annotated[
        bool, typer.Option("--exit", help="Exit after the trainings, for CI.")
    ] = False,
) -> None:
    """Train a small language model twice, with a bug and with its fix, and show both verdicts."""
    if importlib.util.find_spec("torch") is None:
        typer.echo(
            "gradledger demo needs PyTorch: pip install 'gradledger[monitor,torch]'", err=True
        )
        raise typer.Exit(2)
    signal.signal(signal.SIGTERM, _interrupt)
    out = console(sys.stdout)
    out.print("Starting the service with an embedded database ...")
    try:
        with daemon() as service:
            _run_demo(out, service)
            if not exit_:
                out.print("\nPress Ctrl-C to stop the service.")
                signal.pause()
    except KeyboardInterrupt:
        out.print("\nstopped")
    except (DemoFailed, DaemonFailed, NotEvaluated) as failure:
        typer.echo(f"the demo failed: {failure or failure.__doc__}", err=True)
        raise typer.Exit(1) from failure


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _run_demo(out: Console, service: Daemon) -> None:
    out.print(f"Dashboard: {service.url}\n")
    out.print("1 of 2: a loop with a bug, which averages the means of its 8 micro-batches")
    wrong = _trained(service, "mean-of-means")
    _show(out, wrong)
    if [finding["rule"] for finding in wrong.findings] != [UNEQUAL]:
        raise DemoFailed(f"the bug was not found: {wrong.findings}")
    out.print(wrong.findings[0]["summary"])
    out.print(Text(f"\n{wrong.findings[0]['fix']}\n", style="dim"))
    out.print("2 of 2: the fixed loop, which divides the sum by the tokens of the window")
    fixed = _trained(service, "token-mean")
    _show(out, fixed)
    if fixed.verdict != "balanced":
        raise DemoFailed(f"the fixed loop is {fixed.verdict}: {fixed.findings}")
    out.print(f"Dashboard with both runs: {service.url}", style="bold")


def _trained(service: Daemon, accumulate: str) -> DemoResult:
    """Train under `gradledger run`."""
    run = autostart.new_run_id()
    launcher = [sys.executable, "-m", "gradledger.cli", "run", "--url", service.url]
    launcher += ["--project", "demo", "--name", f"byte-lm {accumulate}", "--"]
    script = [sys.executable, str(SCRIPT), "--accumulate", accumulate]
    command = [*launcher, *script, "--steps", str(STEPS)]
    env = {**DEFAULT_ENVIRONMENT, **os.environ, "GRADLEDGER_RUN": run}
    status = subprocess.call(command, env=env)
    if status:
        raise DemoFailed(f"the training ended with status {status}")
    return wait_for_result(service, run, STEPS)


def _show(out: Console, result: DemoResult) -> None:
    out.print()
    out.print(result_text(result))
    out.print(f"  {result.page}\n")
