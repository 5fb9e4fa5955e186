"""Bad input: a problem document says what and why, the good lines are stored, the process lives."""

from __future__ import annotations

import gzip
import socket
import zlib
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import zstandard

from gradledger.delivery.encoding import encode
from helpers import http
from helpers.batches import EndRecord, batch, step
from helpers.service import Service

GOOD = step(1)
_WIDE = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
_FRAME = zstandard.ZstdCompressor(compression_params=_WIDE).compressobj()
WIDE = _FRAME.compress(b"x" * 1000) + _FRAME.flush()

BAD_LINES = {
    "not JSON": (b"nonsense\n", "$", "malformed"),
    "an array": (b"[1, 2]\n", "$", "Expected `object`, got `array`"),
    "not text": (b"\xff\xfe\x00\n", "$", ""),
    "a text that is not UTF-8": (
        b'{"type":"end","time":1,"steps":[],"x":"y"}\n'.replace(b"end", b"end\x80"),
        "$",
        "UTF-8",
    ),
    "a name that is not UTF-8": (
        encode(GOOD).replace(b'"NllLossBackward0"', b'"Nll\xff"', 1),
        "$",
        "UTF-8",
    ),
    "no type": (b'{"step": 1}\n', "$", "missing required field `type`"),
    "an unknown type": (b'{"type":"rumour"}\n', "$.type", "Invalid value 'rumour'"),
    "a missing field": (b'{"type":"step","optimizer":0,"step":2}\n', "$", "`time`"),
    "a wrong type": (
        b'{"type":"step","optimizer":"Adam","step":2,"time":1}\n',
        "$.optimizer",
        "got `str`",
    ),
    "NaN where a count belongs": (
        encode(GOOD).replace(b'"tokens":10', b'"tokens":"NaN"'),
        "$.micro_batches[0].terms[0].tokens",
        "got `str`",
    ),
    "a bare NaN": (encode(GOOD).replace(b'"norm":1.0', b'"norm":NaN'), "$", "malformed"),
    "negative tokens": (
        encode(GOOD).replace(b'"tokens":30', b'"tokens":-3'),
        "$.micro_batches[1].terms[0].tokens",
        ">= 0",
    ),
    "a negative clock": (b'{"type":"end","time":-1}\n', "$.time", ">= 0"),
    "a number too large": (b'{"type":"end","time":1e999}\n', "$.time", "out of range"),
    "step zero": (b'{"type":"step","optimizer":0,"step":0,"time":1}\n', "$.step", ">= 1"),
    "nested too deeply": (
        b'{"type":"end","time":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        "$",
        "nested too deeply",
    ),
}
BAD_RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "a path": ({"run": "../../etc/passwd"}, "$.run"),
    "the folder above": ({"run": ".."}, "$.run"),
    "a line and its end": ({"run": "r\n"}, "$.run"),
    "an empty id": ({"run": ""}, "$.run"),
    "an endless name": ({"run": "r", "name": "x" * 1000}, "$.name"),
    "a rank outside its world": ({"run": "r", "rank": 2, "world_size": 2}, "$.rank"),
    "another version": ({"run": "r", "v": 9}, "$.v"),
}


def the_problem(response: httpx2.Response, status: int) -> dict[str, Any]:
    """The problem document, checked as such."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["status"] == status and document["title"] and document["detail"]
    assert "Traceback" not in response.text
    return document


@pytest.mark.parametrize("what", BAD_LINES)
def test_a_bad_line_is_refused_with_its_reason_and_the_good_ones_are_stored(
    service: Service, what: str
) -> None:
    line, where, why = BAD_LINES[what]
    run = f"bad-{list(BAD_LINES).index(what)}"
    good = batch(run, [step(1), step(3)])
    response = service.post(good + line + encode(step(4)))
    document = the_problem(response, 422)
    assert (document["stored"], document["duplicates"]) == (3, 0)
    (error,) = document["errors"]
    assert (error["line"], error["field"]) == (4, where)
    assert why in error["reason"]
    assert service.get(f"/runs/{run}/steps/0/4").status_code == 200
    assert service.get("/runs").status_code == 200


@pytest.mark.parametrize("what", BAD_RUNS)
def test_lines_after_a_refused_run_record_have_no_run(service: Service, what: str) -> None:
    said, where = BAD_RUNS[what]
    before = batch("before", [])
    document = the_problem(service.post(before + batch(records=[step(7)], **said)), 422)
    run_error, step_error = document["errors"]
    assert (run_error["line"], run_error["field"]) == (2, where)
    assert step_error["line"] == 3 and step_error["reason"].startswith("unknown run")
    assert document["stored"] == 0
    assert service.get("/runs/before/steps/0/7").status_code == 404


def test_steps_of_an_unknown_run_are_refused(service: Service) -> None:
    document = the_problem(service.post(encode(step(1))), 422)
    assert document["errors"][0]["reason"].startswith("unknown run")


def test_a_config_that_no_database_can_hold_is_refused(service: Service) -> None:
    response = service.post(batch("r", [], config={"seed": 10**30}))
    assert the_problem(response, 422)["errors"][0]["field"] == "$.config"


def test_a_different_record_of_a_stored_step_is_reported(service: Service) -> None:
    assert service.post(batch("twice", [step(1), step(2)])).status_code == 200
    document = the_problem(service.post(batch("twice", [step(1), step(2, tokens=(5, 5))])), 422)
    assert (document["stored"], document["duplicates"]) == (0, 1)
    (error,) = document["errors"]
    assert error["line"] == 3 and "other content" in error["reason"]


def test_a_body_of_100_mb_is_refused_without_keeping_it(service: Service) -> None:
    before = _peak_memory(service)
    sent = batch("big", [step(1)])
    headers = {"Content-Type": "application/x-ndjson"}

    def stream() -> Iterator[bytes]:
        yield sent
        for _ in range(100):
            yield b" " * 2**20

    url = f"{service.url}/api/v1/records"
    unannounced = http.post(url, content=stream(), headers=headers)
    announced = service.post(sent + b" " * (100 * 2**20))
    for response in (unannounced, announced):
        assert f"{32 * 2**20:,} bytes" in the_problem(response, 413)["detail"]
    assert service.get("/runs/big").status_code == 404
    assert _peak_memory(service) - before < 100 * 2**20


def test_a_gzip_bomb_is_refused_without_inflating_it(service: Service) -> None:
    before = _peak_memory(service)
    bomb = gzip.compress(b"\0" * (400 * 2**20), 1)
    assert len(bomb) < 4 * 2**20
    the_problem(service.post(bomb, Content_Encoding="gzip"), 413)
    assert _peak_memory(service) - before < 150 * 2**20


def _peak_memory(service: Service) -> int:
    with open(f"/proc/{service.process.pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


@pytest.mark.parametrize(
    "body",
    [b"not gzip at all", gzip.compress(b"x" * 1000)[:-10], zlib.compress(b"deflate, not gzip")],
    ids=["garbage", "cut short", "another format"],
)
def test_a_body_that_is_not_valid_gzip_is_refused(service: Service, body: bytes) -> None:
    assert "gzip" in the_problem(service.post(body, Content_Encoding="gzip"), 400)["detail"]


def test_gzip_in_several_members_is_read_whole(service: Service) -> None:
    body = gzip.compress(batch("members", [step(1)])) + gzip.compress(encode(step(2)))
    response = service.post(body, Content_Encoding="gzip")
    assert response.json() == {"stored": 2, "duplicates": 0}


def test_zstd_is_read_in_frames_of_any_number(service: Service) -> None:
    body = zstandard.compress(batch("frames", [step(1)])) + zstandard.compress(encode(step(2)))
    response = service.post(body, Content_Encoding="zstd")
    assert response.json() == {"stored": 2, "duplicates": 0}


@pytest.mark.parametrize(
    "body",
    [b"not zstd at all", zstandard.compress(b"x" * 1000)[:-5], WIDE],
    ids=["garbage", "cut short", "a window of 128 MiB"],
)
def test_a_body_that_is_not_valid_zstd_is_refused(service: Service, body: bytes) -> None:
    assert "zstd" in the_problem(service.post(body, Content_Encoding="zstd"), 400)["detail"]


def test_a_zstd_bomb_is_refused_without_inflating_it(service: Service) -> None:
    before = _peak_memory(service)
    bomb = zstandard.compress(b"\0" * (400 * 2**20))
    assert len(bomb) < 2**17
    the_problem(service.post(bomb, Content_Encoding="zstd"), 413)
    assert _peak_memory(service) - before < 150 * 2**20


def test_the_refusal_of_an_unknown_encoding_lists_the_supported_ones(service: Service) -> None:
    response = service.post(batch("r", []), Content_Encoding="br")
    assert "br" in the_problem(response, 415)["detail"]
    assert response.headers["accept-encoding"] == "gzip, zstd"


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "multipart/form-data"])
def test_another_content_type_is_refused(service: Service, kind: str) -> None:
    response = service.post(batch("r", []), Content_Type=kind)
    assert kind in the_problem(response, 415)["detail"]


def test_an_empty_body_is_refused(service: Service) -> None:
    the_problem(service.post(b"\n \n"), 400)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/api/v1/runs/nobody", 404),
        ("GET", "/api/v1/runs/nobody/series", 404),
        ("GET", "/api/v1/runs/nobody/events", 404),
        ("GET", "/api/v1/runs/nobody/steps/0/1", 404),
        ("GET", "/api/v1/runs/nobody/steps/0/zero", 422),
        ("GET", "/api/v1/runs?limit=-1", 422),
        ("GET", "/api/v1/runs?offset=99999999999999999999", 422),
        ("DELETE", "/api/v1/records", 405),
        ("POST", "/healthz", 405),
    ],
)
def test_every_other_error_is_a_problem_document_too(
    service: Service, method: str, path: str, status: int
) -> None:
    the_problem(http.request(method, service.url + path), status)


def test_half_a_request_leaves_the_service_alive(service: Service) -> None:
    with socket.create_connection(("127.0.0.1", service.port)) as connection:
        head = b"POST /api/v1/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"
        connection.sendall(head + b"Content-Length: 1000\r\n\r\n" + batch("half", [step(1)])[:50])
    assert http.get(f"{service.url}/readyz").json() == {"status": "ready"}
    assert service.get("/runs/half").status_code == 404


def test_every_answer_carries_the_security_headers(service: Service) -> None:
    for path in ("/healthz", "/nowhere", "/api/v1/runs", "/"):
        headers = http.get(service.url + path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"


def test_a_clean_batch_is_acknowledged(service: Service) -> None:
    body = batch("clean", [step(1), step(2), EndRecord(5.0, [2])])
    assert service.post(body).json() == {"stored": 3, "duplicates": 0}


def test_bodies_that_are_no_batch_are_small_and_say_how_long_they_are(service: Service) -> None:
    known = f"{service.url}/api/v1/runs/r/findings/loop.double_step/acknowledgement"
    large = http.put(known, json={"note": "n" * 2**17})
    assert f"{2**16:,} bytes" in the_problem(large, 413)["detail"]
    endless = http.put(known, content=iter([b"{"]))
    assert "Content-Length" in the_problem(endless, 411)["detail"]


@pytest.mark.parametrize(
    "path",
    [
        "/static/x/../../../../etc/passwd",
        "/static/x/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/static/x/%2e%2e%5capp.css",
        "/static/..%2f..%2fetc/passwd",
        "/static/x/%00app.css",
        "/runs/..%2f..%2fetc%2fpasswd",
        "/api/v1/runs/..%2f..%2f/steps/0/1",
    ],
)
def test_no_path_leads_to_a_file_that_is_not_meant(service: Service, path: str) -> None:
    with socket.create_connection(("127.0.0.1", service.port)) as connection:  # sent as it is
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = connection.recv(2**16)
    assert answer.startswith(b"HTTP/1.1 404 ") and b"root:" not in answer


def test_a_method_that_an_address_lacks_names_all_that_it_has(service: Service) -> None:
    answer = http.patch(f"{service.url}/api/v1/settings/rules")
    assert the_problem(answer, 405) and answer.headers["allow"] == "GET, PUT"


@pytest.mark.parametrize("body", [{"revision": False}, {"keep_detail_days": True}])
def test_a_boolean_is_no_number(service: Service, body: dict[str, bool]) -> None:
    answer = http.put(f"{service.url}/api/v1/settings/retention", json=body)
    (error,) = the_problem(answer, 422)["errors"]
    assert error["field"].startswith("body.")
