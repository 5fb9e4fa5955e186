"""A run's configuration, copied into what JSON can express.

A script passes whatever it has: numbers of numpy, tensors, paths, namespaces, objects that refer to
themselves. The copy is made once, on the thread that passes it: nothing here is read later, when
the script may have changed it. It never raises; what does not fit is cut and reported.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from types import SimpleNamespace
from typing import Any

from gradledger.identity import sayable

MAX_ENTRIES = 2_000  # of the whole configuration: it is sent with every batch of records
MAX_ITEMS = 200  # of one list
MAX_DEPTH = 8
MAX_TEXT = 1_000  # characters of one value
MAX_INTEGER = 2**63


def plain(config: Any) -> tuple[dict[str, Any], list[str]]:
    """The copy, and what could not be copied as it is, in words."""
    copier = _Copier()
    try:
        copied = copier.entries(config)
    except Exception as error:
        copied, why = None, type(error).__name__
        copier.problems[f"it cannot be read ({why})"] = None
    if copied is None and config is not None and not copier.problems:
        copier.problems[f"{type(config).__name__} is no mapping of names to values"] = None
    return copied or {}, list(copier.problems)


def number(value: Any) -> float | None:
    """The one number that a metric holds; None where it is none."""
    try:
        return float(value)
    except Exception:  # a tensor of several values, a text, an object of the script's
        return None


class _Copier:
    """Copies one configuration, within its bounds."""

    def __init__(self) -> None:
        self.problems: dict[str, None] = {}  # in order, each once
        self._room = MAX_ENTRIES

    def entries(self, config: Any, depth: int = 0) -> dict[str, Any] | None:
        """The entries of anything that has names and values; None where it has none."""
        mapping = _mapping(config, outermost=depth == 0)
        if mapping is None:
            return None
        copied: dict[str, Any] = {}
        for key, value in mapping.items():
            if self._room <= 0:
                self.problems[f"only the first {MAX_ENTRIES} entries are recorded"] = None
                break
            self._room -= 1
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
            self.problems[f"what is nested deeper than {MAX_DEPTH} levels is left out"] = None
            return f"<{type(value).__name__}>"
        copied = self.entries(value, depth)
        if copied is not None:
            return copied
        if isinstance(value, (list, tuple, AbstractSet)):
            return self._items(value, depth)
        return self._text(value)

    def _items(self, values: Iterable[Any], depth: int) -> list[Any]:
        wanted = min(MAX_ITEMS, self._room)
        taken = list(islice(values, wanted + 1))
        if len(taken) > wanted:
            self.problems[f"of a long list, the first {wanted} values are recorded"] = None
        self._room -= len(taken)
        return [self._value(value, depth + 1) for value in taken[:wanted]]

    def _text(self, value: Any) -> str:
        try:
            text = value if isinstance(value, str) else str(_beginning(value))
        except Exception as error:
            self.problems[f"{type(value).__name__} has no text ({type(error).__name__})"] = None
            return f"<{type(value).__name__}>"
        if len(text) > MAX_TEXT:
            self.problems[f"texts longer than {MAX_TEXT} characters are cut"] = None
        return sayable(text[:MAX_TEXT])


def _beginning(value: Any) -> Any:
    return value[: MAX_TEXT + 1] if isinstance(value, (bytes, bytearray)) else value


def _mapping(value: Any, outermost: bool) -> Mapping[Any, Any] | None:
    """Names and values of a mapping, a dataclass or a namespace; of any object, if outermost."""
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
        made = as_dictionary()
        return made if isinstance(made, Mapping) else None
    return dict(vars(value)) if outermost and hasattr(value, "__dict__") else None


def _scalar(value: Any) -> Any:
    """The Python number of a subclass, of numpy, or of a tensor in host memory."""
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_tensor(torch, value)
    if type(value).__module__ == "numpy" and getattr(value, "size", 0) == 1:
        return value.item()
    return value


def _of_tensor(torch: Any, value: Any) -> Any:
    """The number of a plain tensor on the CPU; a description of any other, whose values may be
    on their way, many, or no values at all."""
    if type(value) in (torch.Tensor, torch.nn.Parameter) and value.is_cpu and value.numel() == 1:
        return value.item()
    return f"tensor of shape {list(value.shape)}, {value.dtype}, {value.device}"
