"""Read by Schemathesis: how a body of JSON lines is written."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def json_lines(_: schemathesis.SerializationContext, value: Any) -> bytes:
    """The text as it was drawn; what UTF-8 cannot say, it cannot be sent."""
    return str(value).encode("utf-8", "replace")
