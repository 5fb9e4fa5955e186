"""Converts the arguments of ``watch``.

An argument that cannot be used is ignored, with one message that names it. The run is recorded
without it, and the script continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from gradledger import guard
from gradledger.capture.layers import parameter_names
from gradledger.identity import replace_surrogates
from gradledger.run_config import copy_config
from gradledger.stderr import write_line

if TYPE_CHECKING:
    from gradledger.session import Session

MAX_TEXT = 256  # characters of a name, as the service accepts them
MAX_OPTIMIZERS = 4096
MAX_SHOWN = 40  # characters of a value in a message
MAX_DEPTH = 4  # of collections of collections


def to_name(argument: str, value: Any) -> str | None:
    """The text of a value, truncated; None if it has none."""
    if value is None:
        return None
    try:
        name = replace_surrogates(str(value)).strip()
    except Exception as error:
        _report_ignored(argument, f"it cannot be converted to text ({type(error).__name__})")
        return None
    if len(name) > MAX_TEXT:
        write_line(f"watch({argument}=...) is truncated to {MAX_TEXT} characters")
    return name[:MAX_TEXT] or None


def config_entries(value: Any) -> dict[str, Any]:
    """The configuration as the service stores it."""
    entries, problems = copy_config(value)
    if problems:
        write_line(f"watch(config=...) is not fully recorded: {'; '.join(problems)}")
    return entries


def model_entries(model: Any) -> dict[str, Any]:
    """The entries of the configuration that describe the model."""
    if model is None or is_optimizer(model):
        return {}
    if not callable(getattr(model, "parameters", None)):
        reason = f"{type(model).__name__} has no parameters. Pass a torch.nn.Module"
        _report_ignored("model", reason, model)
        return {}
    entries: dict[str, Any] = {"model": type(model).__name__}
    try:
        entries["model_parameters"] = sum(p.numel() for p in model.parameters())
    except Exception:  # not a module, or one whose parameters have no shape yet
        return entries
    return entries


def remember_model(model: Any) -> None:
    """Take the names of its parameters from it."""
    with guard.fail_open("watch(model)"):
        parameter_names.add_model(model)


def is_optimizer(value: Any) -> bool:
    """Whether its parameter groups can be read, as those of every optimizer can."""
    try:
        return all("params" in group for group in value.param_groups)
    except Exception:
        return False


def track(optimizers: Any, session: Session) -> None:
    """Watch every optimizer in the argument; report every other object in one line."""
    problems: dict[str, None] = {}  # an ordered set
    with guard.fail_open("watch(optimizer=...)", _report_unwatched):
        for optimizer in islice(_flatten(optimizers), MAX_OPTIMIZERS):
            name = type(optimizer).__name__
            if not is_optimizer(optimizer):
                problems[f"{name} has no param_groups"] = None
            elif not isinstance(optimizer, torch.optim.Optimizer):
                problems[f"{name} is not a torch.optim.Optimizer"] = None
            else:
                with guard.fail_open(name, _report_unwatched):
                    session.recorder.watch(optimizer)
    if problems:
        reason = f"{', '.join(problems)}. Pass a torch.optim.Optimizer"
        _report_ignored("optimizer", reason)


def _flatten(value: Any, depth: int = 0) -> Iterator[Any]:
    """The members of collections, nested or not."""
    if value is None:
        return
    if isinstance(value, Mapping):
        value = value.values()
    if is_optimizer(value) or isinstance(value, (str, torch.nn.Module)) or depth == MAX_DEPTH:
        yield value
    elif isinstance(value, Iterable):
        for member in value:
            yield from _flatten(member, depth + 1)
    else:
        yield value


def _report_ignored(argument: str, reason: str, value: Any = None) -> None:
    # an object of the script may raise, or take long, in its own repr
    shown = repr(value[:MAX_SHOWN]) if type(value) is str else "..."
    write_line(f"watch({argument}={shown}) is ignored: {reason}")


def _report_unwatched(where: str, error: Exception) -> None:
    write_line(f"{where} is not recorded: {type(error).__name__}: {error}")
