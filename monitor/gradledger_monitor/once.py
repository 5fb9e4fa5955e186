"""An attribute that is computed when it is first asked for, and only then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Owner = TypeVar("Owner")
Value = TypeVar("Value")


class once(Generic[Owner, Value]):
    """``functools.cached_property`` without the lock that it takes before Python 3.12.

    Facts ask for several such attributes at every step, and one thread does.
    """

    def __init__(self, compute: Callable[[Owner], Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> once[Owner, Value]: ...
    @overload
    def __get__(self, instance: Owner, owner: type) -> Value: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        """The value; from then on it lies in the instance, and this is not called again."""
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
