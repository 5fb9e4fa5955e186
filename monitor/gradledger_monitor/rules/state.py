"""Converts the state that a rule holds between two steps to plain data and back.

A rule declares the attributes that change from step to step, with their types, in ``state``. This
module is the one codec for all of them. The types are values in a mapping and not annotations:
mypyc drops the parameters of annotations (``deque[bool]`` becomes ``deque``). A helper object in
the state of a rule (``LogTrend``) declares its ``state`` in the same way. Its ``__init__`` needs no
arguments, because mypyc supports no object whose ``__init__`` was not run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, get_args, get_origin

import msgspec


def declare(**types: Any) -> Mapping[str, Any]:
    """The types of the attributes that change from step to step, by name."""
    return MappingProxyType(types)


class HasState(Protocol):
    """An object that declares the types of its changing attributes, by name."""

    state: ClassVar[Mapping[str, Any]]


def attributes(holder: HasState) -> dict[str, Any]:
    """The values of the declared attributes; ``plain`` converts those that are not data."""
    return {name: getattr(holder, name) for name in holder.state}


def plain(value: Any) -> Any:
    """The ``enc_hook`` of msgspec: types that msgspec does not encode, as data."""
    if isinstance(value, deque):
        return list(value)
    if hasattr(value, "state"):
        return attributes(value)
    raise NotImplementedError(f"{type(value).__name__} is not plain data")


def restore(holder: HasState, saved: Mapping[str, Any]) -> None:
    """Set the declared attributes of a new object.

    Raises ``msgspec.ValidationError`` where names or types are not those declared.
    """
    _check_names(holder.state, saved)
    for name, kind in holder.state.items():
        value = _typed(saved[name], kind)
        if isinstance(value, deque):
            value = _limited(name, value, getattr(holder, name).maxlen)
        setattr(holder, name, value)


def _check_names(declared: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    if declared.keys() != saved.keys():
        different = ", ".join(sorted(map(str, declared.keys() ^ saved.keys())))
        raise msgspec.ValidationError(f"unknown or missing: {different}")


def _typed(value: Any, kind: Any) -> Any:
    return msgspec.convert(value, kind, dec_hook=_decode)


def _decode(kind: Any, value: Any) -> Any:
    """The ``dec_hook`` of msgspec: makes a deque, or an object that has a ``state``."""
    if get_origin(kind) is deque:
        return deque(_typed(value, list[get_args(kind)[0]]))  # type: ignore[misc]
    holder = kind()
    _check_names(kind.state, _typed(value, dict[str, Any]))
    for name, part in kind.state.items():
        setattr(holder, name, _typed(value[name], part))
    return holder


def _limited(name: str, values: deque[Any], most: int | None) -> deque[Any]:
    if most is not None and len(values) > most:
        raise msgspec.ValidationError(f"{name} holds {len(values)} values; the rule holds {most}")
    return deque(values, maxlen=most)
