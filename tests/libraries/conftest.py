"""These tests need the libraries' own environment, which `make libraries` builds."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

from helpers.device import DEVICE

collect_ignore_glob = [] if find_spec("trl") else ["test_*.py"]

# Before the libraries are imported: no network, and no settings in the home folder.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TRL_EXPERIMENTAL_SILENCE="1")
os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("YOLO_CONFIG_DIR", os.path.join(os.getcwd(), "build", "yolo"))
if DEVICE == "cpu" and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, which any library may do
