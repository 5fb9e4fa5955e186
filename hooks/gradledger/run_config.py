"""Copies the configuration of a run into values that JSON can express.

A script may pass any object: numpy numbers, tensors, paths, namespaces, objects that refer to
themselves. The copy is made once, on the calling thread, because the script may change the objects
later. Copying never raises; values that exceed a limit are truncated and reported.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from types import SimpleNamespace
from typing import Any

from gradledger.identity import replace_surrogates

MAX_ENTRIES = 2_000  # of the whole configuration, which is sent with every batch of records
MAX_ITEMS = 200  # of one list
MAX_DEPTH = 8
MAX_TEXT = 1_000  # characters of one value
MAX_INTEGER = 2**63


def copy_config(config: Any) -> tuple[dict[str, Any], list[str]]:
    """The copy, and a description of each problem."""
    copier = _Copier()
    try:
        copied = copier.entries(config)
    except Exception as error:
        copied = None
        copier.problems[f"it cannot be read ({type(error).__name__})"] = None
    if copied is None and config is not None and not copier.problems:
        copier.problems[f"{type(config).__name__} is not a mapping of names to values"] = None
    return copied or {}, list(copier.problems)


def to_number(value: Any) -> float | None:
    """The number that a metric holds; None if it is not a single number."""
    try:
        return float(value)
    except Exception:  # a tensor of several values, a text, an object of the script
        return None


class _Copier:
    """Copies one configuration within the limits."""

    def __init__(self) -> None:
        self.problems: dict[str, None] = {}  # an ordered set
        self._remaining = MAX_ENTRIES

    def entries(self, config: Any, depth: int = 0) -> dict[str, Any] | None:
        """The entries of an object that has names and values; None if it has none."""
        mapping = _mapping(config, outermost=depth == 0)
        if mapping is None:
            return None
        copied: dict[str, Any] = {}
        for key, value in mapping.items():
            if self._remaining <= 0:
                self.problems[f"only the first {MAX_ENTRIES} entries are recorded"] = None
                break
            self._remaining -= 1
            copied[self._text(key)] = self._value(value, depth + 1)
        return copied

    def _value(self, value: Any, depth: int) -> Any:
        try:
            return self._copy(value, depth)
        except Exception as error:
            name = type(value).__name__
            self.problems[f"a {name} cannot be read ({type(error).__name__})"] = None
            return f"<{name}>"

    def _copy(self, value: Any, depth: int) -> Any:
        value = _scalar(value)
        if value is None or isinstance(value, (bool, float)):
            return value
        if isinstance(value, int) and abs(value) < MAX_INTEGER:
            return value
        if isinstance(value, (str, bytes)):
            return self._text(value)
        if depth > MAX_DEPTH:
            self.problems[f"values nested deeper than {MAX_DEPTH} levels are omitted"] = None
            return f"<{type(value).__name__}>"
        copied = self.entries(value, depth)
        if copied is not None:
            return copied
        if isinstance(value, (list, tuple, AbstractSet)):
            return self._items(value, depth)
        return self._text(value)

    def _items(self, values: Iterable[Any], depth: int) -> list[Any]:
        limit = min(MAX_ITEMS, self._remaining)
        items = list(islice(values, limit + 1))
        if len(items) > limit:
            self.problems[f"only the first {limit} values of a long list are recorded"] = None
        self._remaining -= len(items)
        return [self._value(item, depth + 1) for item in items[:limit]]

    def _text(self, value: Any) -> str:
        try:
            text = value if isinstance(value, str) else str(_prefix(value))
        except Exception as error:
            self.problems[
                f"{type(value).__name__} cannot be converted to text ({type(error).__name__})"
            ] = None
            return f"<{type(value).__name__}>"
        if len(text) > MAX_TEXT:
            self.problems[f"texts are truncated to {MAX_TEXT} characters"] = None
        return replace_surrogates(text[:MAX_TEXT])


def _prefix(value: Any) -> Any:
    return value[: MAX_TEXT + 1] if isinstance(value, (bytes, bytearray)) else value


def _mapping(value: Any, outermost: bool) -> Mapping[Any, Any] | None:
    """Names and values of a mapping, dataclass or namespace; if outermost, of any object."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: getattr(value, name, None) for name in names}
    if isinstance(value, SimpleNamespace) or type(value).__name__ == "Namespace":
        return dict(vars(value))
    as_dictionary = getattr(value, "to_dict", None) if outermost else None
    if callable(as_dictionary):
        dictionary = as_dictionary()
        return dictionary if isinstance(dictionary, Mapping) else None
    return dict(vars(value)) if outermost and hasattr(value, "__dict__") else None


def _scalar(value: Any) -> Any:
    """The Python number in an instance of a subclass, a numpy scalar or a CPU tensor."""
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor_scalar(torch, value)
    if type(value).__module__ == "numpy" and getattr(value, "size", 0) == 1:
        return value.item()
    return value


def _tensor_scalar(torch: Any, value: Any) -> Any:
    """The number in a plain CPU tensor of one element; a description of any other tensor.

    Values of other tensors may not have arrived from the device, or there may be several or none.
    """
    if type(value) in (torch.Tensor, torch.nn.Parameter) and value.is_cpu and value.numel() == 1:
        return value.item()
    return f"tensor of shape {list(value.shape)}, {value.dtype}, {value.device}"
