"""Zstandard: the standard library's from Python 3.14 on, before that the package."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    import zstandard as zstd

__all__ = ["MAGIC", "zstd"]

MAGIC = b"\x28\xb5\x2f\xfd"  # how a frame begins: RFC 8878, 3.1.1
