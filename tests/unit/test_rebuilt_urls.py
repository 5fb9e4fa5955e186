"""No code of the service reads the URL that a request's headers were put together to.

Its path and host are what a client writes into ``Host``: with `127.0.0.1/login?` there, the path of
every request is /login. The ASGI scope has what routing goes by.
"""

from __future__ import annotations

import ast
from pathlib import Path

import gradledger_monitor

FOLDER = Path(gradledger_monitor.__file__).parent
REBUILT = {"url", "base_url", "url_for"}


def rebuilt(source: str) -> list[int]:
    """The lines that read such a URL of a request."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and node.attr in REBUILT
        and isinstance(node.value, ast.Name)
        and node.value.id in ("request", "connection", "websocket")
    ]


def test_the_check_sees_what_it_is_for() -> None:
    assert rebuilt("def f(request):\n    return request.url.path") == [2]
    assert rebuilt("request.base_url") == [1]


def test_nothing_is_decided_on_a_url_rebuilt_from_headers() -> None:
    found = {
        f"{file.relative_to(FOLDER)}:{line}"
        for file in FOLDER.rglob("*.py")
        for line in rebuilt(file.read_text())
    }
    assert not found, "read scope['path'], scope['query_string'] and scope['scheme'] instead"
