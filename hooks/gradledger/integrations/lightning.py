"""Lightning: a callback, added automatically under ``gradledger run`` or ``watch``.

    trainer = Trainer(..., callbacks=[GradledgerCallback(name="my run")])

There are two packages, ``lightning`` and ``pytorch_lightning``, with separate classes: a callback
of one is not a callback of the other. The class is created for the package that is imported.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

from gradledger import api, guard
from gradledger.integrations import open_session
from gradledger.observers.base import Patch

# Each package and the name of the class made for it. Strategies that spawn processes, such as
# ``ddp_spawn``, pickle the Trainer with its callbacks: this module finds the class by its name.
PACKAGES = {
    "lightning.pytorch": "LightningCallback",
    "pytorch_lightning": "PytorchLightningCallback",
}

_patches: dict[str, Patch] = {}


class SessionCallback:
    """Passes evaluation metrics and checkpoints to the open session, if there is one."""

    _before: dict[str, Any]

    @open_session.failing_open
    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Add the framework and the planned number of steps to the configuration."""
        open_session.on_train_begin("lightning", trainer.estimated_stepping_batches)

    @open_session.failing_open
    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """Save the training metrics, which Lightning stores in the same dictionary."""
        self._before = dict(trainer.callback_metrics)

    @open_session.failing_open
    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Record the metrics of this validation; equal on all ranks, so rank 0 sends them."""
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        metrics = trainer.callback_metrics.items()
        open_session.log_evaluation({k: v for k, v in metrics if v is not self._before.get(k)})

    @open_session.failing_open
    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
        """Record that Lightning saves a checkpoint; this callback does not receive its path."""
        if trainer.is_global_zero:
            open_session.checkpoint("")


def _watch(self: Any, **options: Any) -> None:
    self.ledger = api.watch(**options)


@functools.cache
def callback_class(package: str) -> type:
    """The callback as a class of ``lightning.pytorch`` or ``pytorch_lightning``."""
    parent = importlib.import_module(package).Callback
    return type(PACKAGES[package], (SessionCallback, parent), {})


@functools.cache
def watching_callback_class(package: str) -> type:
    """A callback class for scripts; it accepts the options of ``gradledger.watch``."""
    return type(f"Watching{PACKAGES[package]}", (callback_class(package),), {"__init__": _watch})


def __getattr__(name: str) -> Any:
    """``GradledgerCallback`` for the package that the script has imported; classes to unpickle."""
    for package, of_package in PACKAGES.items():
        if name == of_package:
            return callback_class(package)
        if name == f"Watching{of_package}":
            return watching_callback_class(package)
    if name != "GradledgerCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    imported = [package for package in PACKAGES if package in sys.modules]
    if not imported:
        raise ImportError("Import lightning.pytorch or pytorch_lightning before GradledgerCallback")
    return watching_callback_class(imported[0])


def add(connector: Any) -> None:
    """Add the callback to every Trainer created from now on that has none yet."""
    package = connector.__name__.split(".trainer.")[0]

    def wrap(original: Any) -> Any:
        def on_trainer_init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            with guard.fail_open("integration lightning"):
                callbacks = self.trainer.callbacks
                if not any(isinstance(callback, SessionCallback) for callback in callbacks):
                    callbacks.append(callback_class(package)())

        return on_trainer_init

    _patches[package] = Patch(connector._CallbackConnector, "on_trainer_init", wrap)


def remove(connector: Any) -> None:
    """Stop adding the callback to new Trainers."""
    _patches.pop(connector.__name__.split(".trainer.")[0]).undo()
