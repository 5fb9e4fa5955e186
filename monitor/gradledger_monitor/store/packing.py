"""How structured values lie in a column: MessagePack, which keeps NaN, infinities and bytes apart
from text; step records are compressed too, for they are most of the database."""

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

# What step records have in common, learnt from those of the museum by `python -m museum.dictionary`
# in tests/. What was stored with it can be read with it only: it is never changed. A better one is
# another file, under another number, beside it.
DICTIONARY = Path(__file__).with_name("records-1.zdict")
LEVEL = 3
LARGEST = 2**20  # bytes of several records, before they are packed

Record = schema.StepRecord | msgspec.Raw  # one that was read, or still as it lies there

_record_decoder = msgspec.msgpack.Decoder(schema.StepRecord)
_records_decoder = msgspec.msgpack.Decoder(dict[int, msgspec.Raw])


def pack_records(
    records: Sequence[tuple[int, Record]],
) -> Iterator[tuple[Sequence[tuple[int, Record]], bytes]]:
    """Records by step as they are stored, in as many parts as bounds their size."""
    plain = msgspec.msgpack.encode(dict(records))
    if len(plain) <= LARGEST or len(records) == 1:
        yield records, _codec.compress(plain)
        return
    half = len(records) // 2
    yield from pack_records(records[:half])
    yield from pack_records(records[half:])


def unpack_records(blob: bytes) -> dict[int, msgspec.Raw]:
    """The stored records by step, each to be read when it is wanted."""
    return _records_decoder.decode(_codec.decompress(blob))


def read_record(raw: msgspec.Raw) -> schema.StepRecord:
    """One of them."""
    return _record_decoder.decode(raw)


def pack_record(record: Record) -> bytes:
    """A single record, as archives hold those of steps that are never judged again."""
    return _codec.compress(msgspec.msgpack.encode(record))


def unpack_record(blob: bytes) -> msgspec.Raw:
    """The record, to be read."""
    # what was written before there was a dictionary
    plain = _codec.decompress(blob) if blob.startswith(MAGIC) else zlib.decompress(blob)
    return msgspec.Raw(plain)


if sys.version_info >= (3, 14):
    _dictionary = zstd.ZstdDict(DICTIONARY.read_bytes())

    class _Codec(threading.local):
        """One for each thread: a compressor works on one text at a time."""

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
        """One for each thread: a compressor works on one text at a time."""

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
