"""Request bodies decompressed by their Content-Encoding, within a bound on bytes.

This is written by hand because libraries lack the bound. ``gzip.decompress`` and Starlette (which
compresses responses only) would expand a bomb in full. A body may consist of several gzip members
or zstd frames, and the bound is on their sum, so each member is decompressed on its own.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator

from gradledger_monitor.common.problems import Problem
from gradledger_monitor.common.zstd import zstd
from gradledger_monitor.ingest.bounds import Bounds

ACCEPTED = "gzip, zstd"
WINDOW_BYTES = 8 * 2**20  # RFC 9659: the largest window that an HTTP decoder must support


def decompress(
    body: bytes, encoding: str, bounds: Bounds, check_time: Callable[[], None] = lambda: None
) -> bytes:
    """The plain body. Raises ``Problem`` if malformed, ``LimitExceeded`` beyond the bounds."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in _ENCODINGS:
        detail = f"Content encoding {encoding!r} is not supported. Send {ACCEPTED} or none."
        raise Problem(415, detail, {"Accept-Encoding": ACCEPTED})
    plain = bytearray()
    try:
        for part in _ENCODINGS[name](body, bounds.size + 1):
            check_time()  # with many small members, each copies everything after it
            plain += part
            if len(plain) > bounds.size:
                raise bounds.body_too_large()
    except (zlib.error, zstd.ZstdError, EOFError) as error:
        raise Problem(400, f"The body is not valid {name}: {error}.") from error
    return bytes(plain)


def _gzip(body: bytes, limit: int) -> Iterator[bytes]:
    while body:  # a gzip body may consist of several members
        member = zlib.decompressobj(wbits=31)
        yield member.decompress(body, limit)
        if not member.eof:
            raise EOFError("it ends too early")
        body = member.unused_data


def _zstd(body: bytes, limit: int) -> Iterator[bytes]:
    while body:  # and a zstd body of several frames
        frame = _ZstdFrame()
        yield from frame.parts(body, limit)
        if not frame.eof:
            raise EOFError("it ends too early")
        body = frame.unused_data


if sys.version_info >= (3, 14):
    _WINDOW = {zstd.DecompressionParameter.window_log_max: WINDOW_BYTES.bit_length() - 1}

    class _ZstdFrame:
        def __init__(self) -> None:
            self._frame = zstd.ZstdDecompressor(options=_WINDOW)  # a final class
            self.eof, self.unused_data = False, b""

        def parts(self, body: bytes, limit: int) -> Iterator[bytes]:
            yield self._frame.decompress(body, limit)
            self.eof, self.unused_data = self._frame.eof, self._frame.unused_data

else:

    class _ZstdFrame:
        def __init__(self) -> None:
            self._frame = zstd.ZstdDecompressor(max_window_size=WINDOW_BYTES).decompressobj()
            self.eof, self.unused_data = False, b""

        def parts(self, body: bytes, _: int) -> Iterator[bytes]:
            # this decompressor takes no bound, and makes at most 8 MiB of 256 bytes
            for at in range(0, len(body), 256):
                yield self._frame.decompress(body[at : at + 256])
                if self._frame.eof:
                    self.eof, self.unused_data = True, self._frame.unused_data + body[at + 256 :]
                    return


_ENCODINGS: dict[str, Callable[[bytes, int], Iterator[bytes]]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "zstd": _zstd,
}
