"""What a page shows of a terminal, compared with what the terminal shows."""

from __future__ import annotations

import re


def looks_like(shown: str, said: str) -> bool:
    """Whether the page shows what was said; ``...`` stands for anything, spaces for some."""
    words = [re.escape(word) for word in shown.split()]
    pattern = r"\s*".join(".*" if word == r"\.\.\." else word for word in words)
    return re.fullmatch(rf"\s*{pattern}\s*", said, re.S) is not None
