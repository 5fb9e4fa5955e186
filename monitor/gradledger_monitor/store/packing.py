"""How structured values lie in a column: MessagePack, which keeps NaN, infinities and bytes apart
from text; step records are compressed too, for they are most of the database."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
from sqlalchemy import Dialect, LargeBinary
from sqlalchemy.types import TypeDecorator

from gradledger_monitor import wire

_record_decoder = msgspec.msgpack.Decoder(wire.StepRecord)


def pack_record(record: wire.StepRecord) -> bytes:
    """A step record as it is stored."""
    return zlib.compress(msgspec.msgpack.encode(record), 1)


def unpack_record(blob: bytes) -> wire.StepRecord:
    """The stored step record."""
    return _record_decoder.decode(zlib.decompress(blob))


class Packed(TypeDecorator[Any]):
    """A list or mapping of plain values."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes | None:
        return None if value is None else msgspec.msgpack.encode(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else msgspec.msgpack.decode(value)
