"""Where in the script a finding points: the calls and statements that its rule is about (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gradledger_monitor.ingest.schema import CodeRole


@dataclass(frozen=True)
class CodeLocation:
    """A call or a statement in the script's code, seen in the first windows of an optimizer.

    Lines and columns count from 1; the end column is the one after the last character.
    """

    role: CodeRole
    file: str  # relative to the working directory of the run, or to the repository
    line: int
    end_line: int | None = None
    column: int | None = None
    end_column: int | None = None
    function: str = ""  # that contains it; empty at the top of a file
    via: str = ""  # the package that makes the call for the script, if it is not PyTorch
    first: int | None = None  # the line number of the first line of ``source``
    source: tuple[str, ...] = ()  # the lines around it, without secrets


LocationsByOptimizer = dict[int, list[CodeLocation]]

MOST = 6  # locations of one finding

# How a report calls what the script does at a location.
LABELS: Mapping[CodeRole, str] = {
    "backward": "backward",
    "scaled_backward": "backward of the scaled loss",
    "idle_backward": "backward, and no step",
    "loss": "loss",
    "step": "optimizer step",
    "zero_grad": "gradients zeroed",
    "clip_norm": "clip by norm",
    "clip_value": "clip by value",
    "unscale": "unscale_",
    "scaler_step": "scaler.step",
    "update": "scaler.update",
    "schedule": "scheduler step",
    "new_scaler": "another GradScaler",
    "load_state": "state of the optimizer loaded",
    "batches": "batches",
    "new_schedule": "LR scheduler created",
}
# A rule that is about the first role is also about the second, after it.
_ALSO: Mapping[CodeRole, CodeRole] = {"backward": "scaled_backward"}


def is_in_repository(location: CodeLocation) -> bool:
    """Whether the file is in the working directory or the repository: not elsewhere, no cell."""
    return not location.file.startswith(("/", "~", "<", "In [", "notebook cell")) and (
        location.file[1:3] != ":/"
    )


def in_repository(locations: Iterable[CodeLocation]) -> CodeLocation | None:
    """The first location that a reader of the repository can open."""
    return next(filter(is_in_repository, locations), None)


def locations_for(
    roles: Sequence[CodeRole], located: Iterable[CodeLocation]
) -> tuple[CodeLocation, ...]:
    """The locations of a rule's roles, in the order of the roles; a line is in it once.

    A call that the script makes precedes those of the same role that a package makes for it. The
    call with which it runs a whole loop, such as ``trainer.train()``, is the last one: what the
    script does inside that loop is nearer to the cause.
    """
    chosen: dict[tuple[str, int], CodeLocation] = {}
    located = sorted(located, key=lambda location: location.via != "")
    for role in roles:
        for each in (role, _ALSO.get(role)):
            for location in located:
                if location.role == each:
                    chosen.setdefault((location.file, location.line), location)
    loops = _loops(located)
    return tuple(sorted(chosen.values(), key=lambda each: _call(each) in loops))[:MOST]


_Call = tuple[str, int, int | None]


def _call(location: CodeLocation) -> _Call:
    return location.file, location.line, location.column


def _loops(located: Iterable[CodeLocation]) -> set[_Call]:
    """The calls in which a package runs both the backward and the step."""
    calls: dict[CodeRole, set[_Call]] = {"backward": set(), "scaled_backward": set(), "step": set()}
    for location in located:
        if location.via and location.role in calls:
            calls[location.role].add(_call(location))
    return (calls["backward"] | calls["scaled_backward"]) & calls["step"]
