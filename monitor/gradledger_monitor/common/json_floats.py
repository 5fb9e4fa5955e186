"""Values that JSON can say (pure)."""

from __future__ import annotations

import math
from typing import Any


def json_safe(value: Any) -> Any:
    """The same, floats that JSON has no word for being the strings that the wire has for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): json_safe(item) for key, item in value.items()}
    return [json_safe(item) for item in value] if isinstance(value, list | tuple) else value
