"""Structured values in columns: MessagePack, which keeps NaN, infinities and bytes apart from text.

Step records are also compressed, because they are most of the database.
"""

from __future__ import annotations

import sys
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Dialect, LargeBinary
from sqlalchemy.types import TypeDecorator

from gradledger_monitor.common.zstd import MAGIC, zstd
from gradledger_monitor.ingest import schema

# A compression dictionary for step records, trained on those of the museum by
# `python -m museum.dictionary` in tests/. Records that were compressed with it cannot be read
# without it, so the file never changes: a better dictionary is another file with another number.
DICTIONARY = Path(__file__).with_name("records-1.zdict")
LEVEL = 3
LARGEST = 2**20  # bytes of several records, before they are packed

Record = schema.StepRecord | msgspec.Raw  # decoded, or as it is stored

_record_decoder = msgspec.msgpack.Decoder(schema.StepRecord)
_records_decoder = msgspec.msgpack.Decoder(dict[int, msgspec.Raw])


def pack_records(
    records: Sequence[tuple[int, Record]],
) -> Iterator[tuple[Sequence[tuple[int, Record]], bytes]]:
    """Compress records by step, in parts of at most ``LARGEST`` bytes before compression."""
    plain = msgspec.msgpack.encode(dict(records))
    if len(plain) <= LARGEST or len(records) == 1:
        yield records, _codec.compress(plain)
        return
    half = len(records) // 2
    yield from pack_records(records[:half])
    yield from pack_records(records[half:])


def unpack_records(blob: bytes) -> dict[int, msgspec.Raw]:
    """The stored records by step, not yet decoded: see ``read_record``."""
    return _records_decoder.decode(_codec.decompress(blob))


def read_record(raw: msgspec.Raw) -> schema.StepRecord:
    """Decode a stored record."""
    return _record_decoder.decode(raw)


def pack_record(record: Record) -> bytes:
    """Compress a single record, as archives have those of pruned steps."""
    return _codec.compress(msgspec.msgpack.encode(record))


def unpack_record(blob: bytes) -> msgspec.Raw:
    """A single record, not yet decoded."""
    # records from before there was a dictionary are zlib
    plain = _codec.decompress(blob) if blob.startswith(MAGIC) else zlib.decompress(blob)
    return msgspec.Raw(plain)


if sys.version_info >= (3, 14):
    _dictionary = zstd.ZstdDict(DICTIONARY.read_bytes())

    class _Codec(threading.local):
        """One per thread: a compressor works on one text at a time."""

        def __init__(self) -> None:
            self._compressor = zstd.ZstdCompressor(LEVEL, zstd_dict=_dictionary)

        def compress(self, plain: bytes) -> bytes:
            return self._compressor.compress(plain, zstd.ZstdCompressor.FLUSH_FRAME)

        def decompress(self, blob: bytes) -> bytes:
            return zstd.decompress(blob, _dictionary)

else:
    _dictionary = zstd.ZstdCompressionDict(DICTIONARY.read_bytes())
    _dictionary.precompute_compress(LEVEL)

    class _Codec(threading.local):
        """One per thread: a compressor works on one text at a time."""

        def __init__(self) -> None:
            self.compress = zstd.ZstdCompressor(LEVEL, dict_data=_dictionary).compress
            self.decompress = zstd.ZstdDecompressor(dict_data=_dictionary).decompress


_codec = _Codec()


class Packed(TypeDecorator[Any]):
    """A list or mapping of plain values."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes | None:
        return None if value is None else msgspec.msgpack.encode(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else msgspec.msgpack.decode(value)
