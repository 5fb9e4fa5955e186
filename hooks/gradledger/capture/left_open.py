"""Which windows no step closed until the process ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gradledger.capture.async_copy import values_soon
from gradledger.capture.code.script_sources import BACKWARDS
from gradledger.capture.gradient_probe import copy_coordinates
from gradledger.capture.layers.parameter_names import names_of
from gradledger.capture.open_parts import OpenUnfinished, ends_by_exception

if TYPE_CHECKING:
    from gradledger.capture.open_records import OpenStep
    from gradledger.capture.replica_sample import OpenModels
    from gradledger.capture.windows import OpenWindows, OptimizerWindow

# Backwards that are reported if no step follows: more than these (of lines of steps), times usual.
LEFT_OPEN, AGAIN, TIMES_USUAL = 64, 16, 8
MOST_NAMED = 64  # parameters in a record


def is_abandoned(window: OptimizerWindow) -> bool:
    """Whether scaled gradients of the open window were zeroed after a clip read their norm."""
    clipped = any(event.op == "clip_norm" for event in window.events)
    zeroed = any(counted.fresh for counted in window.micro_batches[1:])
    scaled = any(counted.micro_batch.scale is not None for counted in window.micro_batches)
    return clipped and zeroed and scaled and window.optimizer is not None


def note_awaited(window: OptimizerWindow, windows: Iterable[OptimizerWindow]) -> None:
    """Note the micro-batches that other optimizers will step on, as far as it is known by now.

    Those of the windows that they have open, since their gradients were zeroed.
    """
    if len(window.micro_batches) < 2:  # none can have been zeroed
        return
    awaiting: dict[int, set[int | None]] = {}  # optimizers, by micro-batch
    for other in windows:
        for counted in reversed(other.micro_batches if other is not window else ()):
            awaiting.setdefault(id(counted.micro_batch), set()).add(other.index)
            if counted.fresh:
                break
    for counted in window.micro_batches if awaiting else ():
        counted.awaited = id(counted.micro_batch) in awaiting
    if awaiting:
        _note_shared(window, awaiting)


def _note_shared(window: OptimizerWindow, awaiting: Mapping[int, set[int | None]]) -> None:
    """Note that each loss has a separate optimizer beside this one, which some step after.

    As the heads of a trunk have. An optimizer that has stepped on the others, and is reached by
    this one, too, is the discriminator of a generator: what it stepped on has leaked.
    """
    stepped: set[int | None] = set()
    rest = []
    for counted in window.micro_batches:
        others = counted.micro_batch.stepped_by.keys() - {window.index}
        stepped |= others
        if not others:
            rest.append(counted)
    by_others = [awaiting.get(id(counted.micro_batch), set()) for counted in rest]
    shared = bool(stepped) and all(each and stepped.isdisjoint(each) for each in by_others)
    for counted in rest:
        counted.shared = shared


def unfinished_steps(
    windows: OpenWindows,
    now: float,
    facts: tuple[str, ...],
    models_of: Callable[[Any], OpenModels | None],
) -> Iterator[tuple[OpenStep, OptimizerWindow]]:
    """Windows that no step closed, or whose schedule goes on, or whose parameters changed since, or
    whose optimizer, one of several, stepped and never had a gradient.

    Where another optimizer has stepped, an open window may wait for it, as in a GAN. If others took
    many steps since, its schedule had ended before.
    """
    stepped, readable = windows.stepped, windows.of_this_thread()
    several, reported = len(readable) > 1, list[Any]()
    for window in readable:
        is_last = not windows.skipping and 2 * (windows.closed - window.closed_as) <= window.steps
        schedule = window.schedule if is_last else None
        plan = schedule and schedule.unfinished(window.steps, window.largest)
        models = models_of(window)
        is_open = stepped in ([], [window]) and is_left_open(window)
        if plan or models or is_open or (several and is_last and _is_unreached(window)):
            window.code.stop()
            again = window.code.are_stepped(window.micro_batches)
            left = plan or OpenUnfinished(trained=window.steps * window.largest, again=again)
            step = window.close(windows.index_of(window), now)
            step.facts, step.left_open, step.models = facts, left, models
            reported.append(window)
            yield step, window
    of_others = [w for w in readable if w.steps and w not in reported]
    beside = max(of_others, key=lambda each: each.steps, default=None)
    idle = next((w for w in readable if _is_idle(w, windows)), None) if beside else None
    if beside is not None and idle is not None:
        yield _step_beside(idle, beside, now, facts), beside


def _is_unreached(window: OptimizerWindow) -> bool:
    """Whether it has stepped, and no backward has added to its gradients at any time."""
    return window.steps > 0 and not (window.fed or window.by_hand or window.partial)


def _is_idle(window: OptimizerWindow, windows: OpenWindows) -> bool:
    """Whether it never stepped, and nothing else has updated its parameters by now.

    No optimizer that has stepped holds one of them, and the script has not dropped this one: it may
    have replaced it.
    """
    if window.steps or window.by_hand or window.partial or window.optimizer is None:
        return False
    if len(window.micro_batches) <= AGAIN or window.initial is None:
        return False
    return not windows.has_trained(window.parameters()) and _is_unchanged(window)


def _step_beside(
    idle: OptimizerWindow, beside: OptimizerWindow, now: float, facts: tuple[str, ...]
) -> OpenStep:
    """What an idle optimizer left open, in a record of one that stepped.

    It is no optimizer of the run: rules compare the losses of those that train.
    """
    for each in (idle, beside):
        each.code.stop()
    backwards = [call for call in idle.code.take() if call.role in BACKWARDS]
    beside.code.unsent += [call._replace(role="idle_backward") for call in backwards]
    names = names_of(idle.optimizer.param_groups, search=False)
    reached = {id(p) for p in idle.parameters() if p.grad is not None}
    named = [name for key, name in names.items() if key in reached]
    step = idle.close(beside.index or 0, now)
    step.step, step.facts = beside.steps + 1, facts
    step.left_open = OpenUnfinished(
        idle=idle.name[:256], names=named[:MOST_NAMED], stopped=ends_by_exception()
    )
    return step


def is_left_open(window: OptimizerWindow) -> bool:
    """Whether far more backwards than usual are in the window, and nothing updated it.

    Of an optimizer that the script has dropped, no parameter can be read: an update after the last
    backward would not be noticed, and one in between is.
    """
    most = AGAIN if window.code.are_stepped(window.micro_batches) else LEFT_OPEN
    most, count = max(most, TIMES_USUAL * window.largest), len(window.micro_batches)
    if count <= most or window.by_hand or window.partial:
        return False
    if window.optimizer is None:
        return not any(counted.changed for counted in window.micro_batches)
    return _is_unchanged(window)


def _is_unchanged(window: OptimizerWindow) -> bool:
    """Whether nothing has updated the parameters since the first backward of the window.

    By their versions, and by their values, which ``.data`` changes without a version.
    """
    if any(counted.changed for counted in window.micro_batches):
        return False
    probed = window.probed_parameters
    if not probed or window.read_versions() != window.versions:
        return False
    if window.initial is None:
        return True
    now = copy_coordinates(probed)
    values = None if now is None else values_soon([window.initial, now])
    return values is not None and values[0] == values[1]
