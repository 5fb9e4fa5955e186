"""Hugging Face Trainer: a callback, found by itself under ``gradledger run`` or ``watch``.

trainer = Trainer(..., callbacks=[GradledgerCallback(name="my run")])
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from gradledger import api
from gradledger.integrations import open_session

# The Trainer adds these to every evaluation; they say how fast it was, not how good.
SPEED = ("_runtime", "_per_second", "_compilation_time")


class Follower(TrainerCallback):
    """Tells an open session what the Trainer knows; without one it does nothing."""

    @open_session.failing_open
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Whose loop it is, and how many steps are planned."""
        open_session.training_begins("transformers", state.max_steps)

    @open_session.failing_open
    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any
    ) -> None:
        """The metrics of the evaluation; every process has the same ones, so one tells them."""
        if state.is_world_process_zero:
            quality = {k: v for k, v in (metrics or {}).items() if not k.endswith(SPEED)}
            quality.pop("epoch", None)
            open_session.evaluation(quality)

    @open_session.failing_open
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Where the Trainer has just saved a checkpoint."""
        if state.is_world_process_zero:
            open_session.checkpoint(f"{args.output_dir}/checkpoint-{state.global_step}")


class GradledgerCallback(Follower):
    """Watches the run from now on; takes the options of ``gradledger.watch``."""

    def __init__(self, **options: Any) -> None:
        self.ledger = api.watch(**options)


_follower = Follower()


def add(trainer: Any) -> None:
    """Every Trainer made from now on has our callback."""
    trainer.DEFAULT_CALLBACKS.append(_follower)


def remove(trainer: Any) -> None:
    """No Trainer made from now on has it."""
    trainer.DEFAULT_CALLBACKS.remove(_follower)
