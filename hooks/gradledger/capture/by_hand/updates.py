"""Updates that no optimizer of PyTorch makes, recognised by what they do to the parameters.

A loop may write ``p -= lr * p.grad``, replace its parameters by new tensors, or use an optimizer of
another library. Where the process has no optimizer of PyTorch, the leaves of each backward's graph
form a group, and a window stands in for their optimizer. The window closes when the next backward
begins, if the parameters have changed since the last one ended:

- the version of a parameter moved, or it is another tensor of the same shape with other values;
- on the CPU also if its values changed, because ``p.data.add_(...)`` moves no version;
- of the parameters that are probed and have a gradient, most changed. (The forward of
  ``nn.Embedding(max_norm=...)`` changes one.)

A change along the gradient, not against it, is a perturbation that the loop takes back (SAM),
unless it happens twice in a row. If some parameters of a group change and others do not, it is
split: a GAN by hand updates its two networks in turn.

What an update applied is read from the gradients that are left when the next backward begins: see
``_set_gradient``. If they are gone, it is not known.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradledger.capture import gradient_probe
from gradledger.capture.async_copy import Deferred
from gradledger.capture.by_hand.in_backward import UpdatesInBackward
from gradledger.capture.by_hand.state import State, numbers, precision_of, update_of
from gradledger.capture.isolation import alive, is_plain, local_part
from gradledger.capture.open_parts import OpenUpdate
from gradledger.capture.open_records import CountedMicroBatch, OpenMicroBatch
from gradledger.capture.open_terms import HALF

if TYPE_CHECKING:
    from gradledger.capture.windows import OpenWindows, OptimizerWindow

MAX_NODES = 50_000  # of a graph, until the leaves that were found are all that are observed
MAX_SPLIT_GAPS = 8  # gaps between two backwards at which a group may be split
MAX_FRUITLESS = 32  # backwards without an update, after which graphs are not walked any more
ALIGNED = 0.5  # cosine between a change of parameters and their gradient, for a split
RISING = 0.7  # for a change along the gradient


class UpdateByHand:
    """Parameters that no optimizer holds, in place of an optimizer. It keeps none of them alive."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        self.replace(parameters)

    def replace(self, parameters: Sequence[Any]) -> None:
        """The loop has replaced its parameters by new tensors of the same shapes."""
        self._references = [weakref.ref(parameter) for parameter in parameters]
        self.shapes = [tuple(parameter.shape) for parameter in parameters]

    @property
    def parameters(self) -> list[Any]:
        """Those that are alive."""
        return alive(self._references)

    @property
    def is_complete(self) -> bool:
        """Whether the script has dropped none of them."""
        return all(reference() is not None for reference in self._references)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One group with all parameters, and without a learning rate."""
        return [{"params": self.parameters}]


class _Group:
    """The parameters that are updated together, and their state when the last backward ended."""

    def __init__(self, parameters: Sequence[Any], windows: OpenWindows) -> None:
        self.optimizer = UpdateByHand(parameters)
        self.window = windows.window_of(self.optimizer)
        self.window.by_hand = self.window.code.by_hand = self.window.probe.keeps_freed = True
        self.state: State | None = None  # of the probed parameters
        self.all: State | None = None  # of all of them, in the first gaps
        self.gaps = 0
        self.fruitless = 0  # backwards since the last update
        self.rises = 0  # changes along the gradient in a row
        self.risen = 0  # micro-batches of the open window before the first of them
        self.before_rise: State | None = None

    def replace(self, parameters: Sequence[Any]) -> None:
        self.optimizer.replace(parameters)
        self.window.choose_probed(list(parameters))

    def keep_state(self) -> None:
        self.state = State(self.window.probed_parameters)
        may_split = self.gaps < MAX_SPLIT_GAPS
        self.all = State(self.optimizer.parameters, with_gradients=True) if may_split else None


class UpdatesByHand:
    """Finds the groups, and closes their windows. The caller holds the recorder's lock."""

    def __init__(
        self, windows: OpenWindows, close: Callable[[OptimizerWindow, OpenUpdate], None]
    ) -> None:
        self._windows, self._close = windows, close
        self.in_backward = UpdatesInBackward(windows, close)
        self._groups: list[_Group] = []
        self._copies: list[_Copies] = []
        self.updates = 0

    def needed(self) -> bool:
        """Whether the process has no optimizer of PyTorch. If it gets one, forget the groups."""
        optimizers = [window.optimizer for window in self._windows]
        if any(o is not None and not isinstance(o, UpdateByHand) for o in optimizers):
            self._groups.clear()
            return False
        return True

    def begin_backward(self, roots: Sequence[Any], inputs: Sequence[Any] | None = None) -> None:
        """Close the windows of what was updated, and find the parameters of this backward.

        ``inputs``: those of ``torch.autograd.grad``; otherwise they are the leaves of the graph.
        """
        if not self.needed():
            if inputs is None:
                self._find_copies(roots)
            return
        leaves: Sequence[Any] | None = inputs
        if leaves is None and self._must_walk():
            leaves = list(leaves_of(roots))
        if leaves:
            self._assign(leaves)
        for group in self._of_this_thread():
            self._close_if_updated(group)

    def reads(self, inputs: Sequence[Any]) -> bool:
        """Whether gradients of these inputs may be what the loop trains with."""
        if self.needed():
            return True
        input_ids = set(map(id, inputs))
        return any(
            input_ids.issuperset(map(id, window.probed_parameters)) for window in self._starved()
        )

    def _starved(self) -> list[OptimizerWindow]:
        """The windows of optimizers that step on gradients which no backward added to."""
        return [window for window in self._windows.of_this_thread() if window.starved]

    def _find_copies(self, roots: Sequence[Any]) -> None:
        """Find the leaves whose values an optimizer holds copies of: master weights."""
        self._copies = [copies for copies in self._copies if copies.window.starved]
        watched = [copies.window for copies in self._copies]
        for window in self._starved():
            if window not in watched:
                pairs = list(_copies_of(window.parameters(), list(leaves_of(roots))))
                if pairs:
                    self._copies.append(_Copies(window, pairs))
        for copies in self._copies_of_this_thread():
            copies.begin_backward()

    def _copies_of_this_thread(self) -> list[_Copies]:
        readable = self._starved() if self._copies else []
        return [copies for copies in self._copies if copies.window in readable]

    def end_backward(self, micro_batch: OpenMicroBatch, reached: Sequence[OptimizerWindow]) -> None:
        """Keep the state of the parameters that the backward reached."""
        for copies in self._copies_of_this_thread():
            copies.end_backward(micro_batch)
        updated = self.in_backward.end_backward(micro_batch, reached)
        self.updates += len(updated)
        for group in self._groups:
            if group.window in updated:
                group.gaps, group.fruitless, group.state = group.gaps + 1, 0, None
            elif group.window in reached:
                group.fruitless += 1
                group.keep_state()
                if group.window.micro_batches:
                    gradients = [p.grad for p in group.optimizer.parameters]
                    group.window.micro_batches[-1].norms = _norms(gradients)

    def add_gradients(
        self, micro_batch: OpenMicroBatch, inputs: Sequence[Any], gradients: Sequence[Any]
    ) -> None:
        """Count a call of ``torch.autograd.grad`` in the window of its inputs."""
        by_input = {id(p): g for p, g in zip(inputs, gradients, strict=True)}
        for window in self._starved():
            probed = [by_input.get(id(p)) for p in window.probed_parameters]
            if probed and all(gradient is not None for gradient in probed):
                sample = gradient_probe.copy_coordinates(probed)
                window.add_source(CountedMicroBatch(micro_batch, True, sample_after=sample))
        for group in self._of_this_thread():
            probed = [by_input.get(id(p)) for p in group.window.probed_parameters]
            if not probed or any(gradient is None for gradient in probed):
                continue
            window = group.window
            window.fresh, window.sample_before = True, None
            window.add_micro_batch(micro_batch)
            window.micro_batches[-1].sample_after = gradient_probe.copy_coordinates(probed)
            window.micro_batches[-1].returned = True
            window.micro_batches[-1].norms = _norms(gradients)
            group.fruitless += 1
            group.keep_state()

    def finish(self) -> None:
        """The process ends: the last update may have been made."""
        if self.needed():
            for group in self._of_this_thread():
                self._close_if_updated(group)

    # ------------------------------------------------------------------ groups

    def _must_walk(self) -> bool:
        if not self._groups:
            return True
        if all(group.fruitless > MAX_FRUITLESS for group in self._groups):
            return False
        early = min(group.gaps for group in self._groups) < MAX_SPLIT_GAPS
        return early or not all(group.optimizer.is_complete for group in self._groups)

    def _assign(self, leaves: Sequence[Any]) -> None:
        """Each leaf belongs to one group: to that which holds it, or holds one like it.

        Those of other threads are left alone: to read what one writes can end the process.
        """
        held = {id(p) for group in self._groups for p in group.optimizer.parameters}
        new = [leaf for leaf in leaves if id(leaf) not in held and _is_readable(leaf)]
        if not new:
            return
        shapes = [tuple(leaf.shape) for leaf in new]
        for group in self._of_this_thread():
            if group.optimizer.shapes == shapes:
                group.replace(new)
                return
        self._groups = [group for group in self._groups if group.optimizer.is_complete]
        self._groups.append(_Group(new, self._windows))

    def _split(self, group: _Group, before: State) -> bool:
        """Split a group of which only a part is updated; its open window is incomplete.

        A parameter without a gradient need not change, and goes with those that do.
        """
        parameters = group.optimizer.parameters
        now = State(parameters)
        changed = before.changed(now)
        if not len(changed) == len(parameters) == len(before.ids) or not any(changed):
            return False
        idle = [
            parameter
            for parameter, has_changed, gradient in zip(
                parameters, changed, before.gradients, strict=True
            )
            if any(gradient) and not has_changed
        ]
        part = [index for index, has_changed in enumerate(changed) if has_changed]
        if not idle or not _follows(before, now, part):
            return False
        others = set(map(id, idle))
        updated = [p for p in parameters if id(p) not in others]
        self._groups.remove(group)
        for part in (updated, idle):
            new = _Group(part, self._windows)
            new.window.partial = part is idle
            new.gaps = group.gaps
            self._groups.append(new)
        return True

    def _of_this_thread(self) -> list[_Group]:
        readable = self._windows.of_this_thread()
        return [group for group in self._groups if group.window in readable]

    # ------------------------------------------------------------------ updates

    def _close_if_updated(self, group: _Group) -> None:
        before, window = group.state, group.window
        if before is None or not window.micro_batches:
            return
        now = State(window.probed_parameters)
        changed = before.changed(now)
        if not any(changed):
            return
        group.gaps += 1
        early = group.gaps <= MAX_SPLIT_GAPS
        if early and group.all is not None and self._split(group, group.all):
            return
        if 2 * sum(changed) <= len(changed):
            return
        if _rises(window, before, now):
            group.rises += 1
            if group.rises == 1:
                group.before_rise, group.risen = before, len(window.micro_batches)
                window.marks = []  # the gradients may be cleared past their version
                return
            if group.rises == 2:  # the loop ascends its gradient
                del window.micro_batches[: group.risen]
        start = group.before_rise if group.rises == 1 and group.before_rise else before
        update = update_of(window, start, now)
        _set_gradient(update, window)
        if group.rises == 1:
            group.rises = 0
        group.before_rise = None
        group.fruitless = 0
        self.updates += 1
        group.state = None
        self._close(window, update)


class _Copies:
    """Parameters of an optimizer, and the leaves of the model that they are copies of."""

    def __init__(self, window: OptimizerWindow, pairs: list[tuple[Any, Any]]) -> None:
        self.window = window
        window.choose_probed([master for master, _ in pairs])
        probed = set(map(id, window.probed_parameters))
        self._leaves = UpdateByHand([leaf for master, leaf in pairs if id(master) in probed])
        self._half = any(leaf.dtype in HALF for _, leaf in pairs)
        self._before: Deferred | None = None
        self._versions: list[int] = []

    def _gradients(self) -> list[Any]:
        return [leaf.grad for leaf in self._leaves.parameters if leaf.grad is not None]

    def _marks(self) -> list[int]:
        return [number for g in self._gradients() for number in (id(g), g._version)]

    def begin_backward(self) -> None:
        gradients = self._gradients()
        self._versions = self._marks()
        self._before = gradient_probe.copy_coordinates(gradients) if gradients else None

    def end_backward(self, micro_batch: OpenMicroBatch) -> None:
        gradients = self._gradients()
        if not gradients or self._marks() == self._versions or not self._leaves.is_complete:
            return
        if self.window.sources and self.window.sources[-1].micro_batch is micro_batch:
            self.window.sources.pop()  # sampled at other coordinates
        fresh = self._before is None
        sample = gradient_probe.copy_coordinates(gradients)
        counted = CountedMicroBatch(
            micro_batch, fresh, self._before, sample_after=sample, half=self._half
        )
        self.window.add_source(counted)


def _copies_of(masters: Sequence[Any], leaves: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Each parameter with the leaf of the same shape and, rounded, the same values."""
    left = [leaf for leaf in leaves if _is_readable(leaf) and local_part(leaf).is_cpu]
    for master in masters:
        if not _is_readable(master) or not local_part(master).is_cpu:
            continue
        for leaf in left:
            if leaf.shape == master.shape and _are_equal(master, leaf):
                left = [other for other in left if other is not leaf]
                yield master, leaf
                break


def _are_equal(master: Any, leaf: Any) -> bool:
    """Whether the sampled values are equal, as rounded to the dtype of the leaf."""
    values, copies = (numbers(gradient_probe.copy_coordinates([t])) for t in (master, leaf))
    rounding, pairs = 2 * precision_of(local_part(leaf)), zip(values, copies, strict=True)
    return any(values) and all(abs(a - b) <= rounding * abs(a) for a, b in pairs)


def _set_gradient(update: OpenUpdate, window: OptimizerWindow) -> None:
    """The gradients as the update found them, and whether they are still there.

    Unchanged marks: they are as backward left them. If one write left zeros, that write cleared
    them. Other values are those that the update used, or a multiple of them.
    """
    counted = window.micro_batches[-1]
    if counted.returned:
        return
    if window.probe.freed is not None:
        update.gradient = window.probe.freed
        return
    last, now = window.marks, window.read_marks()
    if last == now:
        update.gradient, update.untouched = counted.sample_after, True
        return
    sample = window.sample()
    has_all = all(p.grad is not None for p in window.probed_parameters)
    if sample is None or not has_all or len(last) != len(now):
        return
    one_write = all(a[0] == b[0] and b[1] == a[1] + 1 for a, b in zip(last, now, strict=True))
    before = counted.sample_after if one_write else None
    if sample.tensor is not None:  # on a device: whether they are zeros is seen later
        update.gradient, update.if_cleared, update.decided = sample, before, False
    elif any(numbers(sample)):
        update.gradient, update.untouched = sample, True
    else:
        update.gradient = before


def _rises(window: OptimizerWindow, before: State, now: State) -> bool:
    """Whether the parameters moved along the gradient of the last backward."""
    sample = window.micro_batches[-1].sample_after
    if sample is None or not (before.on_cpu and now.on_cpu):
        return False
    return _alignment(_all(before.values), _all(now.values), sample.values()) > RISING


def leaves_of(roots: Sequence[Any]) -> Iterator[Any]:
    """The leaves below the roots of a backward, in the order of a walk through their graph."""
    stack = [root.grad_fn if isinstance(root, torch.Tensor) else root.node for root in roots]
    visited: set[Any] = set()
    while stack and len(visited) < MAX_NODES:
        node = stack.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            yield leaf
        stack.extend(below for below, _ in node.next_functions)


def _is_readable(leaf: Any) -> bool:
    return bool(leaf.is_leaf) and leaf.requires_grad and is_plain(local_part(leaf))


def _follows(before: State, now: State, part: Sequence[int]) -> bool:
    """Whether some parameters changed along their gradients, or against them."""
    old = _all([before.values[index] for index in part])
    new = _all([now.values[index] for index in part])
    gradient = [number for index in part for number in before.gradients[index]]
    return abs(_alignment(old, new, gradient)) > ALIGNED


def _alignment(old: Sequence[float], new: Sequence[float], gradient: Sequence[float]) -> float:
    """The cosine between a change and a gradient; 0 if they cannot be compared."""
    if not len(gradient) == len(old) == len(new):
        return 0.0
    changes = [b - a for a, b in zip(old, new, strict=True)]
    product = sum(c * g for c, g in zip(changes, gradient, strict=True))
    size = math.sqrt(sum(c * c for c in changes) * sum(g * g for g in gradient))
    return product / size if size else 0.0


def _norms(gradients: Sequence[Any]) -> Deferred | None:
    """The norm of each gradient; None if some are not dense tensors of one device."""
    dense = [g for g in gradients if g is not None]
    plain = all(is_plain(g) and g.layout is torch.strided for g in dense)
    if not dense or not plain or len({g.device for g in dense}) > 1:
        return None
    detached = [gradient.detach() for gradient in dense]
    return Deferred(torch.stack(list(torch._foreach_norm(detached))).float())


def _all(values: Sequence[Deferred | None]) -> list[float]:
    return [number for part in values for number in numbers(part)]
