"""The demo: a training script in plain PyTorch, its service, and its results."""

from __future__ import annotations

from pathlib import Path

SCRIPT = Path(__file__).with_name("byte_lm.py")  # a path, because importing it needs torch
