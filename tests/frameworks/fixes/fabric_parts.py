"""Lightning's Fabric on CPUs, with one rank or several."""

from __future__ import annotations

import os
from typing import Any

from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.fabric.strategies import DDPStrategy


def start(**more: Any) -> Fabric:
    """An object of Fabric whose processes have started; each rank has its own data."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        os.environ["LOCAL_WORLD_SIZE"] = str(ranks)
        launched = TorchElasticEnvironment()
        more["strategy"] = DDPStrategy(cluster_environment=launched, process_group_backend="gloo")
    fabric = Fabric(accelerator="cpu", devices=ranks, **more)
    fabric.launch()
    return fabric
