"""Two ways to watch a script: with the real hooks, or with a witness that knows none of them."""

from __future__ import annotations

import io
import runpy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # what the first optimizer imports, a second: once, not in every fork
import torch.nn.parallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradledger import guard, identity
from gradledger.capture.open_records import OpenStep
from gradledger.capture.recorder import Recorder
from gradledger.capture.step_sampling import StepSampler
from gradledger.delivery.encoding import encode
from gradledger.records import RunRecord
from helpers import device
from museum.truth import tape
from museum.truth.seen import Step, look


def with_hooks(
    script: Path,
    output: Path,
    step_sampler: StepSampler | None = None,
    then: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Write what would be sent, line by line. ``then`` gets the script's names at its end."""
    faults: list[BaseException] = []
    guard.reporter = lambda where, error: faults.append(error)
    steps: list[OpenStep] = []
    recorder = Recorder(steps.append, step_sampler)
    recorder.install()
    try:
        with device.no_waits(faults.append):
            names = runpy.run_path(str(script), run_name="__main__")
        recorder.finish()  # while the script's names are alive, as at the interpreter's exit
        if then is not None:
            then(names)
        names.clear()
    finally:
        recorder.uninstall()
    if faults:
        raise faults[0]
    run = RunRecord("run", script.stem, *identity.rank_and_world(_launched()), started=time.time())
    run.optimizers = recorder.windows.names
    output.write_bytes(b"".join([encode(run), *(encode(step.resolve()) for step in steps)]))


def in_part(script: Path, output: Path) -> None:
    """The same where the hooks watch two steps of every four, as they do in runs of short steps."""
    with_hooks(script, output, StepSampler(1e-12, first_steps=2, burst=2, longest_period=4))


def with_witness(script: Path, output: Path) -> None:
    """Write what the optimizers applied, and what the check of the label needs of the script."""
    steps: list[Step] = []
    handle = register_optimizer_step_pre_hook(lambda optimizer, *_: steps.append(look(optimizer)))
    with tape.recording() as recorded_tape:
        names: dict[str, Any] = runpy.run_path(str(script), run_name="__main__")
    names["tape"] = recorded_tape
    handle.remove()
    from museum.truth import testify  # noqa: PLC0415 - the checks are not needed for records

    buffer = io.BytesIO()
    torch.save(testify(script, names, steps), buffer)
    output.write_bytes(buffer.getvalue())


def _launched() -> dict[str, str]:
    import os  # noqa: PLC0415

    return dict(os.environ)


def with_truth(script: Path, output: Path) -> None:
    """Write the records, and what the truth of a generated program is computed from."""
    from oracle.observing import with_truth as observe  # noqa: PLC0415 - for generated programs alone

    observe(script, output)


def with_proof(script: Path, output: Path) -> None:
    """Write the records, and what a proof of a fix compares."""
    from museum.fixes.proof import observe  # noqa: PLC0415 - for fixes alone

    observe(script, output)


WATCHES = {
    "records": with_hooks,
    "in_part": in_part,
    "witness": with_witness,
    "truth": with_truth,
    "fix": with_proof,
}
