"""Lightning: a callback, found by itself under ``gradledger run`` or ``watch``.

    trainer = Trainer(..., callbacks=[GradledgerCallback(name="my run")])

The package goes by two names, ``lightning`` and ``pytorch_lightning``, whose classes are not the
same; a callback of either is no callback of the other. Ours is made for the one that is imported.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from gradledger import api, guard
from gradledger.integrations import open_session
from gradledger.observers.base import Patch

PACKAGES = ("lightning.pytorch", "pytorch_lightning")

_patches: dict[str, Patch] = {}


class Follower:
    """Tells an open session what the Trainer knows; without one it does nothing."""

    _before: dict[str, Any]

    @open_session.failing_open
    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Whose loop it is, and how many steps are planned."""
        open_session.training_begins("lightning", trainer.estimated_stepping_batches)

    @open_session.failing_open
    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """The metrics of training, which Lightning keeps in the same place."""
        self._before = dict(trainer.callback_metrics)

    @open_session.failing_open
    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """The metrics that this validation has logged; the same on all ranks, so one tells."""
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        now = trainer.callback_metrics.items()
        open_session.evaluation({k: v for k, v in now if v is not self._before.get(k)})

    @open_session.failing_open
    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
        """Lightning saves a checkpoint; under which name, it tells nobody here."""
        if trainer.is_global_zero:
            open_session.checkpoint("")


def _watch(self: Any, **options: Any) -> None:
    self.ledger = api.watch(**options)


@functools.cache
def follower_of(package: str) -> type:
    """Our callback as a class of ``lightning.pytorch`` or of ``pytorch_lightning``."""
    return type("Follower", (Follower, sys.modules[package].Callback), {})


@functools.cache
def watcher_of(package: str) -> type:
    """The same, for a script to name: it takes the options of ``gradledger.watch``."""
    return type("GradledgerCallback", (follower_of(package),), {"__init__": _watch})


def __getattr__(name: str) -> Any:
    """``GradledgerCallback``, of the package that the script has imported."""
    if name != "GradledgerCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    imported = [package for package in PACKAGES if package in sys.modules]
    if not imported:
        raise ImportError("import lightning.pytorch, or pytorch_lightning, before this")
    return watcher_of(imported[0])


def add(connector: Any) -> None:
    """Every Trainer made from now on has our callback, unless the script gave it one."""
    package = connector.__name__.split(".trainer.")[0]

    def wrap(original: Any) -> Any:
        def on_trainer_init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            with guard.fail_open("integration lightning"):
                callbacks = self.trainer.callbacks
                if not any(isinstance(callback, Follower) for callback in callbacks):
                    callbacks.append(follower_of(package)())

        return on_trainer_init

    _patches[package] = Patch(connector._CallbackConnector, "on_trainer_init", wrap)


def remove(connector: Any) -> None:
    """No Trainer made from now on has it."""
    _patches.pop(connector.__name__.split(".trainer.")[0]).undo()
