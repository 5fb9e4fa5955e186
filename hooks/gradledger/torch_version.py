"""Which versions of PyTorch the hooks support.

Check it before ``session`` is imported: PyTorch 1 lacks names that the observers import.
"""

from __future__ import annotations

import re
from functools import cache

import torch

from gradledger.stderr import write_line

OLDEST = (2, 6)


def is_supported(version: str) -> bool:
    """Whether a version is supported; 2.6.0a0 is, which is a build before 2.6.0."""
    return at_least(OLDEST, version)


def at_least(oldest: tuple[int, int], version: str | None = None) -> bool:
    """Whether a version, of the PyTorch that runs by default, is this one or newer."""
    numbers = re.match(r"(\d+)\.(\d+)", version or str(torch.__version__))
    return numbers is not None and tuple(map(int, numbers.groups())) >= oldest


@cache
def check() -> bool:
    """Whether this PyTorch is supported. If not, the first call writes a line."""
    if is_supported(str(torch.__version__)):
        return True
    oldest = ".".join(map(str, OLDEST))
    write_line(
        f"not started (needs PyTorch {oldest} or newer, this is {torch.__version__}); "
        "the program runs without the hooks"
    )
    return False
