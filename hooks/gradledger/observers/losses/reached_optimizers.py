"""Which optimizers the gradient of each loss reaches, if a backward has several losses.

Losses may be separated by ``detach``: one backward of their sum then trains the parameters of
several optimizers, each with some of the losses. The marks of the gradients show that a backward
reached an optimizer, and not with which loss. The graph below each loss does: its leaves are the
parameters that the loss trains.

All losses are followed down at once, from node to node, until each has reached every optimizer, or
the graph ends. This happens only if a process has several optimizers and a
backward several losses, when the backward has ended: what checkpointing computes again, and what
FSDP2 had gathered, is known then. The graph is read, never evaluated or kept.

If the answer was the same in a row of backwards, the whole graph is followed in some of the next
ones only. In the others, each loss is followed for a few nodes, to confirm what it reaches: it must
reach the same optimizers there, and the nodes must be the same ones. If a loss is attached farther
down, it is missing in a few windows, but none has a loss too many. The gradients show whether the
backward reached another optimizer than the losses did before.

A way that leads through a custom function with several outputs (a compiled module, a reentrant
checkpoint) proves nothing, unless the same losses use all of its outputs: the function may detach
one from the parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import BackwardCFunction

from gradledger import guard
from gradledger.capture.open_terms import OpenTerm, Reach
from gradledger.observers.losses.found_losses import LossNode, output_count, sequence_number
from gradledger.observers.losses.node_names import PARAMETER, PASSED_ON_IN_ORDER

if TYPE_CHECKING:
    from gradledger.capture.open_records import OpenMicroBatch
    from gradledger.capture.windows import OpenWindows, OptimizerWindow

MAX_OPTIMIZERS = 16  # where there are more, each holds a parameter or a layer of one model
SAME, EVERY = 8, 16  # backwards in a row with the same answer; the whole graph in one of these
NEAR, NEAR_ALL = 64, 512  # nodes below a loss, and below all, in which its optimizers are confirmed
MAX_KNOWN = 64  # kinds of backwards in a process
MAX_NODES = 50_000  # visits in one backward, about 20 ms
TOO_LARGE = f"the graph of several losses has more than {MAX_NODES} nodes"
HIDES = "several losses pass {}, which hides the optimizers that each of them reaches"
UNREADABLE = "this version of PyTorch does not show which optimizers each of several losses reaches"

_current_node: Any = getattr(torch._C, "_current_autograd_node", None)


class ReachedOptimizers:
    """Follows the losses of each backward to the optimizers of this thread."""

    def __init__(self, windows: OpenWindows) -> None:
        self._windows = windows
        self._answers: dict[object, _Answers] = {}

    def begin(self, micro_batch: OpenMicroBatch, losses: list[LossNode]) -> bool:
        """Follow these losses, of the terms of the micro-batch, when its backward has ended.

        False if all of them are of one optimizer, or there is one loss.
        """
        terms = micro_batch.terms
        if len(terms) < 2 or len(losses) != len(terms):
            return False
        windows = self._windows.of_this_thread()
        if not 1 < len(windows) <= MAX_OPTIMIZERS:
            return False
        owners: dict[int, int] = {}
        for number, window in enumerate(windows):
            for parameter in window.parameters():
                owners[id(parameter)] = owners.get(id(parameter), 0) | 1 << number
        reach = micro_batch.reach = Reach()
        key = (*map(id, windows), len(owners), *((term.kind, term.reduction) for term in terms))
        if len(self._answers) == MAX_KNOWN and key not in self._answers:
            self._answers.clear()
        answers = self._answers.setdefault(key, _Answers())
        walk = reach.walk = _Walk(reach, windows, owners, answers)
        for loss, term in zip(losses, terms, strict=True):
            nodes = [loss.path.function or loss.node, *loss.alike]
            walk.start(term, nodes, inside=loss.compiled is not None)
        micro_batch.undo.append(walk.finish)
        return True

    @staticmethod
    def nested(micro_batch: OpenMicroBatch, graphs: Iterable[Any], terms: list[OpenTerm]) -> None:
        """Reentrant checkpointing runs a backward inside a node of the graph: what is below it.

        ``terms`` are the losses in it. They may reach whatever that node does.
        """
        walk = None if micro_batch.reach is None else micro_batch.reach.walk
        if walk is None:
            return
        node = None if _current_node is None else _current_node()
        if node is None:
            walk.unknown = UNREADABLE
            return
        walk.inside.setdefault(node, set()).update(_leaves(graphs))
        for term in terms:
            walk.start(term, [node])


@dataclass(slots=True)
class _Answers:
    """Which optimizers the losses of some backwards reach: a mask of losses for each of them."""

    reached: list[int] = field(default_factory=list)
    near: list[int] = field(default_factory=list)  # the nodes near each loss, as a number
    same: int = 0  # backwards in a row
    confirmed: int = 0  # since the whole graph was followed


class _Walk:
    """The graph below the losses of one backward.

    A mask has a bit for each loss: of those that reach a node, and, shifted by ``SHIFT``, of those
    that may.
    """

    SHIFT = 512  # more than there are terms in a micro-batch

    def __init__(
        self,
        reach: Reach,
        windows: list[OptimizerWindow],
        owners: dict[int, int],
        answers: _Answers,
    ) -> None:
        self.unknown = ""
        self._answers = answers
        self.inside: dict[Any, set[int]] = {}  # leaves (by id) below a backward inside of a node
        self._reach = reach
        self._windows, self._owners = windows, owners
        self._terms: list[OpenTerm] = []
        self._queue: list[tuple[int, int, Any, int, int]] = []  # a heap: see ``_push``
        self._pushed = self._every = 0
        self._complete = 0  # losses that have reached every optimizer: they need not go on
        self._masks: dict[Any, int] = {}
        self._opaque: dict[Any, dict[int, int]] = {}  # the masks of the outputs of a function
        self._reached = [0] * len(windows)
        self._hiding = ""  # what hides the way of some losses

    def start(self, term: OpenTerm, nodes: list[Any], inside: bool = False) -> None:
        """Follow a loss from these nodes; ``inside``: it is computed inside a compiled graph."""
        number = len(self._terms)
        self._terms.append(term)
        self._every |= 1 << number
        for node in nodes:
            self._push(node, -number - 1 if inside else 0, 1 << number)

    def finish(self) -> None:
        """Follow all losses, and note which optimizers each reaches."""
        self._reach.walk = None
        with guard.fail_open("the search for the optimizers of a loss", self._fail):
            near = self._follow_near()
            if not self._is_confirmed(near):
                self._run()
                self._remember(near)
        self._note()

    def _fail(self, where: str, error: Exception) -> None:
        guard.report(where, error)
        self.unknown = f"{where} failed: {type(error).__name__}"

    def _follow_near(self) -> list[tuple[int, int]]:
        """For each loss, the optimizers that it reaches within a few nodes, and which nodes."""
        if self._answers.same < SAME - 1 or self.inside:
            return []  # it is too early to compare them
        limit = min(NEAR, NEAR_ALL // len(self._terms))
        return [self._near(1 << bit, limit) for bit in range(len(self._terms))]

    def _near(self, bit: int, limit: int) -> tuple[int, int]:
        owners, names = 0, []
        nodes = [node for *_, node, _, mask in self._queue if mask & bit]
        visited = set(nodes)
        for node in nodes:  # which grows
            names.append(name := _name(node))
            below = node.next_functions
            if not below and name == PARAMETER:
                owners |= self._owners_of(id(node.variable))
            elif isinstance(node, BackwardCFunction) and output_count(node) != 1:
                break  # what is below it is not sure
            for each, _ in below:
                if each is None:
                    names.append("")
                elif each not in visited and len(nodes) < limit:
                    visited.add(each)
                    nodes.append(each)
        return owners, hash(tuple(names))

    def _is_confirmed(self, near: list[tuple[int, int]]) -> bool:
        """Whether each loss reaches the optimizers that it reached before, within a few nodes."""
        answers = self._answers
        if answers.same < SAME or answers.confirmed == EVERY or not near:
            return False
        for bit, (owners, nodes) in enumerate(near):
            expected = sum(1 << n for n, mask in enumerate(answers.reached) if mask >> bit & 1)
            if expected & ~owners:
                answers.same = 0  # they are farther away
                return False
            if nodes != answers.near[bit]:
                return False
        for window, mask in zip(self._windows, answers.reached, strict=True):
            if not mask and window.read_marks() != window.marks:
                return False  # a loss reaches it now
        answers.confirmed += 1
        self._reached = answers.reached
        return True

    def _remember(self, near: list[tuple[int, int]]) -> None:
        """Compare the answer with that of the last such backward."""
        answers = self._answers
        doubt = self.unknown or self._hiding or self._opaque or self.inside
        same = answers.reached == self._reached and not doubt
        answers.reached, answers.same = self._reached, answers.same + 1 if same else 0
        answers.near = [nodes for _, nodes in near]
        answers.confirmed = 0

    def _run(self) -> None:
        """Visit the nodes in the reverse order of forward: each after all that are above it.

        Where several threads computed the forward, a node may need several visits.
        """
        every, visits, queue, masks = self._every, 0, self._queue, self._masks
        while queue:
            _, _, node, output, mask = heappop(queue)
            is_custom = isinstance(node, BackwardCFunction)
            if not is_custom:
                mask &= ~(masks.get(node, 0) | self._complete)
                if not mask:
                    continue
            visits += 1
            if visits > MAX_NODES:
                self.unknown = TOO_LARGE
                return
            below = node.next_functions
            if is_custom:
                if len(below) == output_count(node) and _name(node) in PASSED_ON_IN_ORDER:
                    each, index = below[output]
                    self._push(each, index, mask)
                    continue
                mask = self._through(node, output, mask)
            masks[node] = masks.get(node, 0) | mask
            if not below and _name(node) == PARAMETER:
                self._add_leaf(node.variable, mask)
                if self._complete == every:
                    return
            for each, index in below:
                self._push(each, index, mask)
        if not self.inside.keys() <= masks.keys():  # a backward inside one that is inside
            self.unknown = UNREADABLE

    def _through(self, node: Any, output: int, mask: int) -> int:
        """The losses that go on below a custom function, which may hide the way of some."""
        if output_count(node) != 1 or output < 0:
            used = self._opaque.setdefault(node, {})
            used[output] = used.get(output, 0) | mask
            mask = ((mask | mask >> self.SHIFT) & self._every) << self.SHIFT
        mask &= ~(self._masks.get(node, 0) | self._complete)
        if mask:
            self._add_leaves(node, mask)
        return mask

    def _push(self, node: Any, output: int, mask: int) -> None:
        if node is not None and mask & ~self._masks.get(node, 0):
            self._pushed += 1
            heappush(self._queue, (-(sequence_number(node) or 0), self._pushed, node, output, mask))

    def _add_leaves(self, node: Any, mask: int) -> None:
        for leaf in self.inside.get(node, ()):
            self._add_owners(self._owners_of(leaf), mask)

    def _add_leaf(self, leaf: Any, mask: int) -> None:
        """Of several parameters in the flat one of FSDP1, it is not known which a loss reaches."""
        parts = getattr(leaf, "_params", None)
        if parts and id(leaf) not in self._owners:
            owners = 0
            for part in parts:
                owners |= self._owners_of(id(part))
            if owners & (owners - 1):
                self._hiding = "a flat parameter of FSDP"
                mask = (mask | mask >> self.SHIFT) << self.SHIFT
            self._add_owners(owners, mask)
            return
        self._add_owners(self._owners_of(id(leaf)), mask)

    def _owners_of(self, leaf: int) -> int:
        return self._owners.get(self._reach.shards.get(leaf, leaf), 0)

    def _add_owners(self, owners: int, mask: int) -> None:
        if not owners:
            return
        complete = self._every
        for number, reached in enumerate(self._reached):
            if owners >> number & 1:
                self._reached[number] = reached = reached | mask
            complete &= reached
        self._complete = complete

    def _note(self) -> None:
        """For each loss and window: whether it is reached, None if that is not known."""
        low, hiding = (1 << self.SHIFT) - 1, self._hiding
        for node, used in self._opaque.items():  # some losses pass one output, some another
            if len({(mask | mask >> self.SHIFT) & low for mask in used.values()}) > 1:
                hiding = hiding or _name(node)
        self._reach.unknown = self.unknown or (HIDES.format(hiding) if hiding else "")
        for bit, term in enumerate(self._terms):
            term.reach = {}
            for window, reached in zip(map(id, self._windows), self._reached, strict=True):
                sure, possible = reached >> bit & 1, reached >> bit + self.SHIFT & 1
                if self.unknown or (possible and hiding and not sure):
                    term.reach[window] = None
                else:
                    term.reach[window] = bool(sure or possible)


def _name(node: Any) -> str:
    """The name of a node. PyTorch does not declare it for the nodes of custom functions."""
    return str(node.name())


def _leaves(graphs: Iterable[Any]) -> Iterator[int]:
    """The leaves (by id) below these nodes."""
    stack = list(graphs)
    visited = set(stack)
    while stack and len(visited) <= MAX_NODES:
        node = stack.pop()
        if not node.next_functions and _name(node) == PARAMETER:
            yield id(node.variable)
        for below, _ in node.next_functions:
            if below is not None and below not in visited:
                visited.add(below)
                stack.append(below)
