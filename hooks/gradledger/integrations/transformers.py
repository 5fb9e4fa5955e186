"""Hugging Face Trainer: a callback, added automatically under ``gradledger run`` or ``watch``.

trainer = Trainer(..., callbacks=[GradledgerCallback(name="my run")])
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from gradledger import api
from gradledger.integrations import open_session

# The Trainer adds these to every evaluation; they measure speed, not quality.
SPEED_SUFFIXES = ("_runtime", "_per_second", "_compilation_time")


class SessionCallback(TrainerCallback):
    """Passes evaluation metrics and checkpoints to the open session, if there is one."""

    @open_session.failing_open
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the framework and the planned number of steps to the configuration."""
        open_session.on_train_begin("transformers", state.max_steps)

    @open_session.failing_open
    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any
    ) -> None:
        """Record the metrics. All processes have the same ones, so only the main process does."""
        if state.is_world_process_zero:
            quality = {k: v for k, v in (metrics or {}).items() if not k.endswith(SPEED_SUFFIXES)}
            quality.pop("epoch", None)
            open_session.log_evaluation(quality)

    @open_session.failing_open
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record that the Trainer saved a checkpoint."""
        if state.is_world_process_zero:
            open_session.checkpoint(f"{args.output_dir}/checkpoint-{state.global_step}")


class GradledgerCallback(SessionCallback):
    """Starts recording; accepts the options of ``gradledger.watch``."""

    def __init__(self, **options: Any) -> None:
        self.ledger = api.watch(**options)


_callback = SessionCallback()


def add(trainer: Any) -> None:
    """Add the callback to every Trainer that is created from now on."""
    trainer.DEFAULT_CALLBACKS.append(_callback)


def remove(trainer: Any) -> None:
    """Stop adding the callback to new Trainers."""
    trainer.DEFAULT_CALLBACKS.remove(_callback)
