"""A Trainer of Lightning that prints nothing and saves nothing."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer


def fit(module: Any, loader: Any, **more: Any) -> None:
    """One epoch on one CPU."""
    Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **more,
    ).fit(module, loader)
