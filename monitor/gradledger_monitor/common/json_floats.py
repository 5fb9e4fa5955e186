"""Values that JSON can represent (pure)."""

from __future__ import annotations

import math
from typing import Any


def json_safe(value: Any) -> Any:
    """The value with NaN and infinite floats replaced by their strings in the wire format."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): json_safe(item) for key, item in value.items()}
    return [json_safe(item) for item in value] if isinstance(value, list | tuple) else value
