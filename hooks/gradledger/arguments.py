"""What scripts pass to ``watch``, made into what the hooks can use.

An argument that cannot be used is left out, with one line that names it: a run that is described
badly is still watched, and the script goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from gradledger import guard, run_config
from gradledger.identity import sayable
from gradledger.stderr import write_line

if TYPE_CHECKING:
    from gradledger.session import Session

MAX_TEXT = 256  # characters of a name, as the service accepts them
MAX_OPTIMIZERS = 4096
MAX_DEPTH = 4  # of collections of collections


def text(argument: str, value: Any) -> str | None:
    """A name, from whatever has one; None where there is none."""
    if value is None:
        return None
    try:
        name = sayable(str(value)).strip()
    except Exception as error:
        _left_out(argument, f"it has no text ({type(error).__name__})")
        return None
    if len(name) > MAX_TEXT:
        write_line(f"watch({argument}=...) is cut: it is longer than {MAX_TEXT} characters")
    return name[:MAX_TEXT] or None


def configuration(value: Any) -> dict[str, Any]:
    """The configuration as the service stores it."""
    copied, problems = run_config.plain(value)
    if problems:
        write_line(f"watch(config=...) is not recorded as it is: {'; '.join(problems)}")
    return copied


def described(model: Any) -> dict[str, Any]:
    """What the run's configuration says of its model."""
    if model is None or is_optimizer(model):
        return {}
    entries: dict[str, Any] = {"model": type(model).__name__}
    try:
        entries["model_parameters"] = sum(p.numel() for p in model.parameters())
    except Exception:  # no module, or one whose parameters have no shape yet
        return entries
    return entries


def is_optimizer(value: Any) -> bool:
    """Whether it has parameter groups that can be read, as every optimizer does."""
    try:
        return all("params" in group for group in value.param_groups)
    except Exception:
        return False


def track(optimizers: Any, session: Session) -> None:
    """Watch every optimizer that is found in there; what is none is named in one line."""
    others: dict[str, None] = {}
    with guard.fail_open("watch(optimizer=...)", _unreadable):
        for each in islice(_flat(optimizers), MAX_OPTIMIZERS):
            if not is_optimizer(each):
                others[f"{type(each).__name__} has no param_groups"] = None
            elif not isinstance(each, torch.optim.Optimizer):
                others[f"{type(each).__name__} is no torch.optim.Optimizer"] = None
            else:
                with guard.fail_open(type(each).__name__, _unreadable):
                    session.recorder.watch(each)
    if others:
        _left_out("optimizer", ", ".join(others))


def _flat(value: Any, depth: int = 0) -> Iterator[Any]:
    """The members of collections, and of collections of them."""
    if value is None:
        return
    if isinstance(value, Mapping):
        value = value.values()
    if is_optimizer(value) or isinstance(value, (str, torch.nn.Module)) or depth == MAX_DEPTH:
        yield value
    elif isinstance(value, Iterable):
        for each in value:
            yield from _flat(each, depth + 1)
    else:
        yield value


def _left_out(argument: str, why: str) -> None:
    write_line(f"watch({argument}=...) is left out: {why}")


def _unreadable(where: str, error: Exception) -> None:
    write_line(f"{where} is not watched: {type(error).__name__}: {error}")
