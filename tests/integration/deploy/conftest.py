"""The secrets of a deployment, made as its owner makes them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from helpers.compose import ROOT


@pytest.fixture(scope="session")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `deploy/make-secrets` wrote."""
    folder = tmp_path_factory.mktemp("deploy")
    shutil.copy(ROOT / "deploy" / "make-secrets", folder)
    for _ in range(2):  # the second time changes nothing
        subprocess.run([folder / "make-secrets"], check=True)
    return folder / "secrets"
