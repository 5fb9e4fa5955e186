"""Which responses are compressed: pages and JSON, but no form that shows a secret."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from helpers import http
from helpers.batches import batch, eventually, step
from helpers.patience import HANGS
from helpers.seeded import judged
from helpers.service import Service, running_service

GZIP = {"Accept-Encoding": "gzip"}
PLAIN = {"Accept-Encoding": "identity"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with one run."""
    with running_service(tmp_path_factory.mktemp("compression") / "gradledger.db") as running:
        running.post(batch("run", [step(n) for n in range(1, 6)]))
        assert eventually(HANGS, judged(running, "run", 5))
        yield running


def raw(url: str, headers: dict[str, str]) -> tuple[dict[str, str], bytes]:
    """The headers and the body of a response, as they are on the wire."""
    with http.stream("GET", url, headers=headers) as response:
        assert response.status_code == 200
        return dict(response.headers), b"".join(response.iter_raw())


@pytest.mark.parametrize("path", ["/", "/runs/run", "/rules", "/api/v1/runs/run/verdict"])
def test_pages_and_json_are_compressed_for_a_client_that_accepts_it(
    service: Service, path: str
) -> None:
    headers, plain = raw(service.url + path, PLAIN)
    assert "content-encoding" not in headers
    compressed_headers, compressed = raw(service.url + path, GZIP)
    assert compressed_headers["content-encoding"] == "gzip"
    assert int(compressed_headers["content-length"]) == len(compressed) < len(plain) / 2
    unpacked = gzip.decompress(compressed)
    assert unpacked.split()[:20] == plain.split()[:20]  # further on, there may be the time
    assert unpacked.split()[-5:] == plain.split()[-5:]
    for each in (headers, compressed_headers):  # a cache must not send one for the other
        assert "Accept-Encoding" in each["vary"]


def test_a_response_that_fits_one_packet_is_not_compressed(service: Service) -> None:
    headers, body = raw(f"{service.url}/healthz", GZIP)
    assert len(body) < 1_000
    assert "content-encoding" not in headers


def test_events_arrive_at_once_and_are_not_compressed(service: Service) -> None:
    url = f"{service.url}/api/v1/runs/run/events"
    with http.stream("GET", url, headers=GZIP) as response:
        assert "content-encoding" not in response.headers
        service.post(batch("run", [step(6)]))
        assert any(line.startswith("data: ") for line in response.iter_lines())


def test_a_page_that_shows_a_secret_is_not_compressed(service: Service) -> None:
    form = {"name": "laptop", "scope": "read"}
    headers = {**GZIP, "Origin": service.url}
    response = http.post(f"{service.url}/settings/tokens", data=form, headers=headers)
    assert response.status_code == 200
    assert "Copy the token now" in response.text
    assert len(response.content) > 1_000
    assert "content-encoding" not in response.headers
