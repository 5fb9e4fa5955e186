"""Imports torchvision where its kernels cannot be loaded.

The wheels on PyPI are built for CUDA. Beside a PyTorch for CPUs, the import ends at operators
whose kernels are missing. Nothing in these tests calls them, so their declarations are enough.
"""

from __future__ import annotations

import torch

OPERATORS = ("nms", "qnms")


def import_torchvision() -> None:
    """Import torchvision, without kernels if need be."""
    try:
        import torchvision  # noqa: PLC0415
    except RuntimeError:
        for name in OPERATORS:
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)
        import torchvision  # noqa: F401, PLC0415
