"""``gradledger demo``: a classic accumulation bug and its fix, trained and named live."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from gradledger import autostart
from gradledger_monitor.demo.outcome import DemoResult, NotEvaluated, result_text, wait_for_result
from gradledger_monitor.demo.service import Daemon, DaemonFailed, daemon
from gradledger_monitor.reports.terminal import console

SCRIPT = Path(__file__).parents[1] / "demo" / "byte_lm.py"
STEPS = 160
UNEQUAL = "reduction.token_weights_unequal"


class DemoFailed(Exception):
    """The demo did not show what it is there to show."""


def demo(
    leave: Annotated[bool, typer.Option("--exit", help="End by itself, as a CI wants.")] = False,
) -> None:
    """Train a small language model twice, wrong and right, and watch the ledger tell them apart."""
    if importlib.util.find_spec("torch") is None:
        typer.echo(
            "the demo trains with PyTorch: pip install 'gradledger[monitor,torch]'", err=True
        )
        raise typer.Exit(2)
    signal.signal(signal.SIGTERM, _interrupt)
    out = console(sys.stdout)
    out.print("starting the daemon on its embedded database ...")
    try:
        with daemon() as service:
            _tell(out, service)
            if not leave:
                out.print("\nCtrl-C ends the dashboard.")
                signal.pause()
    except KeyboardInterrupt:
        out.print("\nended")
    except (DemoFailed, DaemonFailed, NotEvaluated) as failure:
        typer.echo(f"the demo failed: {failure or failure.__doc__}", err=True)
        raise typer.Exit(1) from failure


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _tell(out: Console, service: Daemon) -> None:
    out.print(f"the dashboard is up, open it now: {service.url}\n")
    out.print("1 of 2: the classic loop, which averages the means of its 8 micro-batches")
    classic = _trained(service, "mean-of-means")
    _show(out, classic)
    if [finding["rule"] for finding in classic.findings] != [UNEQUAL]:
        raise DemoFailed(f"the classic loop was not found out: {classic.findings}")
    out.print(classic.findings[0]["summary"])
    out.print(Text(f"\n{classic.findings[0]['fix']}\n", style="dim"))
    out.print("2 of 2: the corrected loop, which sums, and divides by the tokens of the window")
    corrected = _trained(service, "token-mean")
    _show(out, corrected)
    if corrected.verdict != "balanced":
        raise DemoFailed(f"the corrected loop was found {corrected.verdict}: {corrected.findings}")
    out.print(f"the dashboard, with both runs: {service.url}", style="bold")


def _trained(service: Daemon, accumulate: str) -> DemoResult:
    """One training through `gradledger run`, watched."""
    run = autostart.new_run_id()
    launcher = [sys.executable, "-m", "gradledger.cli", "run", "--url", service.url]
    launcher += ["--project", "demo", "--name", f"byte-lm {accumulate}", "--"]
    script = [sys.executable, str(SCRIPT), "--accumulate", accumulate]
    command = [*launcher, *script, "--steps", str(STEPS)]
    # one thread, so that the dashboard stays quick on two cores
    env = {"OMP_NUM_THREADS": "1", **os.environ, "GRADLEDGER_RUN": run}
    status = subprocess.call(command, env=env)
    if status:
        raise DemoFailed(f"the training ended with status {status}")
    return wait_for_result(service, run, STEPS)


def _show(out: Console, result: DemoResult) -> None:
    out.print()
    out.print(result_text(result))
    out.print(f"  {result.page}\n")
