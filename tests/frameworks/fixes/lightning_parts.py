"""A Trainer of Lightning that prints nothing and saves nothing."""

from __future__ import annotations

import os
from typing import Any

from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy


def fit(module: Any, loader: Any, **more: Any) -> None:
    """One epoch on CPUs; with several ranks, each has its loader."""
    Trainer(**options(), **more).fit(module, loader)


def options() -> dict[str, Any]:
    """Those of the Trainer."""
    return {
        "accelerator": "cpu",
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        **_of_ranks(int(os.environ.get("WORLD_SIZE", "1"))),
    }


def _of_ranks(ranks: int) -> dict[str, Any]:
    if ranks == 1:
        return {"devices": 1}
    os.environ["LOCAL_WORLD_SIZE"] = str(ranks)
    launched = TorchElasticEnvironment()
    strategy = DDPStrategy(cluster_environment=launched, process_group_backend="gloo")
    return {"devices": ranks, "strategy": strategy, "use_distributed_sampler": False}
