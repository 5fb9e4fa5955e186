"""The scalars of TensorBoard event files. TensorBoard is not needed.

A file is a sequence of TFRecords: length, checksum of it, Event, checksum of it. An Event is a
message of Protocol Buffers; its fields are defined in tensorboard/compat/proto/event.proto and
summary.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from gradledger_monitor.importers.metric_log import Point, TrainingLog, UnreadableLog

MARK = "tfevents"
MAX_EVENT_BYTES = 2**28
_HEADER = struct.Struct("<QI")
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")

Fields = Iterator[tuple[int, int | bytes]]


def read(path: Path) -> Iterator[TrainingLog]:
    """The runs below a folder, or of one event file: each folder with event files is one."""
    files = [path] if path.is_file() else sorted(path.rglob(f"*{MARK}*"))
    for folder in sorted({file.parent for file in files}):
        points = [p for file in files if file.parent == folder for p in _points(file)]
        if any(point.values for point in points):
            name = path.name if folder == path else folder.name
            yield TrainingLog("TensorBoard", str(folder.resolve()), name, points)


def _points(path: Path) -> Iterator[Point]:
    for event in _records(path):
        time, step = 0.0, 0
        values: dict[str, float] = {}
        for field, value in _fields(event):
            if field == 1 and isinstance(value, bytes):
                time = _DOUBLE.unpack(value)[0]
            elif field == 2 and isinstance(value, int):
                step = value
            elif field == 5 and isinstance(value, bytes):
                values.update(_scalars(value))
        if values:
            yield Point(step, values, time)


def _records(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while len(header := file.read(_HEADER.size)) == _HEADER.size:
            length = _HEADER.unpack(header)[0]
            if length > MAX_EVENT_BYTES:
                raise UnreadableLog(f"{path}: not a TensorBoard event file")
            event = file.read(length)
            if len(event) < length or len(file.read(4)) < 4:
                return  # the writer died, or is still writing
            yield event


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for field, value in _fields(summary):
        if field == 1 and isinstance(value, bytes):
            tag, number = "", None
            for part, content in _fields(value):
                if part == 1 and isinstance(content, bytes):
                    tag = content.decode(errors="replace")
                elif part == 2 and isinstance(content, bytes):
                    number = _FLOAT.unpack(content)[0]
                elif part == 8 and isinstance(content, bytes):
                    number = _of_tensor(content)
            if tag and number is not None:
                yield tag, number


def _of_tensor(tensor: bytes) -> float | None:
    """The value of a float or double scalar (tensor.proto); None for any other tensor."""
    for field, value in _fields(tensor):
        if isinstance(value, bytes) and field in (4, 5) and len(value) in (4, 8):
            kind: struct.Struct = _FLOAT if len(value) == 4 else _DOUBLE
            number: float = kind.unpack(value)[0]
            return number
    return None


def _fields(message: bytes) -> Fields:
    """Field numbers with their values: an int for a varint, else bytes."""
    at = 0
    try:
        while at < len(message):
            key, at = _varint(message, at)
            wire = key & 7
            if wire == 0:
                value, at = _varint(message, at)
                yield key >> 3, value
                continue
            size = {1: 8, 5: 4}.get(wire)
            if size is None:
                if wire != 2:
                    raise UnreadableLog("an event in it is not a TensorBoard event")
                size, at = _varint(message, at)
            yield key >> 3, message[at : at + size]
            at += size
    except (IndexError, struct.error) as error:
        raise UnreadableLog("an event in it is not a TensorBoard event") from error


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
