"""An error as an RFC 9457 problem document: one shape for every response that is not a success."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response


class Problem(Exception):
    """A response that is not a success.

    ``retry_after`` is in seconds, rounded up; ``members`` extend the document.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        headers: dict[str, str] | None = None,
        retry_after: float | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(math.ceil(retry_after))
        self.members = members

    def response(self) -> Response:
        """The problem document as a response."""
        title = HTTPStatus(self.status).phrase
        document = {"type": "about:blank", "title": title, "status": self.status}
        body = msgspec.json.encode({**document, "detail": self.detail, **self.members})
        return Response(body, self.status, self.headers, "application/problem+json")


def invalid_values(*errors: tuple[str, str]) -> Problem:
    """A problem that names invalid fields, each with the reason."""
    listed = [{"field": field, "reason": reason} for field, reason in errors]
    return Problem(422, "The request contains invalid values.", errors=listed)
