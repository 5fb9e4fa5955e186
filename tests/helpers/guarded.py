"""A service that requires tokens, and callers with and without them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from gradledger_monitor.store.admin import tokens
from gradledger_monitor.store.database import Store
from helpers import http
from helpers.service import Service, running_service

ADMIN = "an-admin-token-of-at-least-32-characters"
NDJSON = {"Content-Type": "application/x-ndjson"}


@dataclass
class Guarded:
    """The service, and its database as its owner sees it."""

    service: Service
    store: Store

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.service.url

    def token(self, *scopes: str) -> str:
        """A new token."""
        return tokens.create(self.store, "someone", scopes, time.time())[1]

    def revoke(self, secret: str) -> None:
        """Take a token back."""
        token = tokens.of_secret(self.store, secret)
        assert token and tokens.revoke(self.store, token.id, time.time())

    def ask(
        self, method: str, path: str, token: str | None = None, **options: Any
    ) -> httpx2.Response:
        """Make a request, with a token or without."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers |= options.pop("headers", {})
        return http.request(method, self.url + path, headers=headers, **options)

    def get(self, path: str, token: str | None = None, **headers: str) -> httpx2.Response:
        """GET a path."""
        return self.ask("GET", path, token, headers=headers)

    def send(self, body: bytes, token: str | None = None) -> httpx2.Response:
        """Send records."""
        return self.ask("POST", "/api/v1/records", token, content=body, headers=NDJSON)


@contextmanager
def guarded_service(folder: Path, **settings: str) -> Iterator[Guarded]:
    """A service on its embedded database that requires tokens, for the duration of a block."""
    options = {"access": "token", "admin_token": ADMIN, **settings}
    with running_service(folder / "gradledger.db", 0, **options) as service:
        store = Store(f"sqlite:///{folder / 'gradledger.db'}")
        try:
            yield Guarded(service, store)
        finally:
            store.close()
