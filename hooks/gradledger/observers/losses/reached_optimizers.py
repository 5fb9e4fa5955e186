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
ones only. In the others, each loss is followed on one way to each optimizer, which must still end
at a parameter of it. And the first nodes below each loss must be of the same kinds. If a loss is
attached farther down, it is missing in a few windows, but none has a loss too many. The gradients
show whether the backward reached another optimizer than the losses did before.

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
NEAR, NEAR_ALL = 24, 256  # nodes below a loss, and below all, that must be of the same kinds
MAX_SEARCHES = 8  # for ways to the optimizers of one kind of backward
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
        windows = [w for w in self._windows.of_this_thread() if w.optimizer is not None]
        if not 1 < len(windows) <= MAX_OPTIMIZERS:
            return False
        reach = micro_batch.reach = Reach()
        sizes = [window.parameter_count() for window in windows]
        key = (*map(id, windows), *sizes, *((term.kind, term.reduction) for term in terms))
        if len(self._answers) == MAX_KNOWN and key not in self._answers:
            self._answers.clear()
        answers = self._answers.setdefault(key, _Answers())
        walk = reach.walk = _Walk(reach, windows, answers)
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
class _Way:
    """From a loss down to a parameter of an optimizer, or to a node of the first way to that."""

    loss: int
    optimizer: int
    start: int  # the node of the loss at which it begins
    edges: list[int]  # which input of each node is the next one
    joins: int = -1  # after how many edges of the first way the node comes at which this one ends


@dataclass(slots=True)
class _Answers:
    """Which optimizers the losses of some backwards reach: a mask of losses for each of them."""

    reached: list[int] = field(default_factory=list)
    near: int = 0  # the kinds of the nodes near the losses, as a number
    same: int = 0  # backwards in a row
    confirmed: int = 0  # since the whole graph was followed
    owners: dict[int, int] = field(default_factory=dict)  # optimizers of each parameter, by id
    ways: list[_Way] = field(default_factory=list)  # of each loss to each optimizer it reaches
    searches: int = 0  # for these


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
        answers: _Answers,
    ) -> None:
        self.unknown = ""
        self._answers = answers
        self.inside: dict[Any, set[int]] = {}  # leaves (by id) below a backward inside of a node
        self._reach = reach
        self._windows, self._owners = windows, answers.owners
        self._terms: list[OpenTerm] = []
        self._starts: list[list[Any]] = []  # of each loss
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
        self._starts.append(nodes)
        self._every |= 1 << number
        for node in nodes:
            self._push(node, -number - 1 if inside else 0, 1 << number)

    def finish(self) -> None:
        """Follow all losses, and note which optimizers each reaches."""
        self._reach.walk = None
        with guard.fail_open("the search for the optimizers of a loss", self._fail):
            near = self._kinds_near()
            if not self._is_confirmed(near):
                self._read_owners()
                self._run()
                self._remember(near)
        self._note()

    def _fail(self, where: str, error: Exception) -> None:
        guard.report(where, error)
        self.unknown = f"{where} failed: {type(error).__name__}"

    def _read_owners(self) -> None:
        """Of the parameters, which optimizers hold each now."""
        owners: dict[int, int] = {}
        for number, window in enumerate(self._windows):
            for parameter in window.parameters():
                owners[id(parameter)] = owners.get(id(parameter), 0) | 1 << number
        self._owners = self._answers.owners = owners

    def _kinds_near(self) -> int:
        """The kinds of the first nodes below the losses, as a number; 0: too early to compare."""
        if self._answers.same < SAME - 1 or self.inside:
            return 0
        limit = min(NEAR, NEAR_ALL // len(self._terms))
        kinds: list[Any] = []
        visited: set[Any] = set()
        for starts in self._starts:
            nodes = [node for node in starts if node not in visited]
            visited.update(nodes)
            for node in nodes:  # which grows
                kinds.append(type(node))
                if isinstance(node, BackwardCFunction) and _is_opaque(node):
                    continue  # what is below it is not sure
                for each, _ in node.next_functions:
                    if each is None:
                        kinds.append(None)
                    elif each not in visited and len(nodes) < limit:
                        visited.add(each)
                        nodes.append(each)
        return hash(tuple(kinds))

    def _is_confirmed(self, near: int) -> bool:
        """Whether each loss still reaches the optimizers that it reached before."""
        answers = self._answers
        if answers.same < SAME or answers.confirmed == EVERY or not near:
            return False
        if near != answers.near or not answers.ways:
            return False
        if not self._end_at_parameters(answers.ways):
            answers.same, answers.ways = 0, []
            return False
        for window, mask in zip(self._windows, answers.reached, strict=True):
            if not mask and window.read_marks() != window.marks:
                return False  # a loss reaches it now
        answers.confirmed += 1
        self._reached = answers.reached
        return True

    def _end_at_parameters(self, ways: list[_Way]) -> bool:
        """Whether ways that were found before still end at a parameter of their optimizer."""
        first: dict[int, list[Any]] = {}  # the nodes of the first way to each optimizer
        for way in ways:
            starts = self._starts[way.loss]
            if way.start >= len(starts):
                return False
            nodes = [starts[way.start]]
            for edge in way.edges:
                below = nodes[-1].next_functions
                if edge >= len(below) or below[edge][0] is None:
                    return False
                if isinstance(nodes[-1], BackwardCFunction) and _is_opaque(nodes[-1]):
                    return False
                nodes.append(below[edge][0])
            if way.joins >= 0:
                if nodes[-1] is not first[way.optimizer][way.joins]:
                    return False
            elif not self._holds(way.optimizer, nodes[-1]):
                return False
            first.setdefault(way.optimizer, nodes)
        return True

    def _holds(self, optimizer: int, node: Any) -> bool:
        """Whether a node is a parameter of this optimizer."""
        if node.next_functions or _name(node) != PARAMETER:
            return False
        return bool(self._owners_of(id(node.variable)) >> optimizer & 1)

    def _search_ways(self) -> list[_Way]:
        """A way of each loss to each optimizer that it reaches; empty if one is not found."""
        ways: list[_Way] = []
        for optimizer, reached in enumerate(self._reached):
            first: dict[Any, int] = {}
            for loss in range(len(self._terms)):
                if not reached >> loss & 1:
                    continue
                way, nodes = self._search_way(loss, optimizer, first)
                if way is None:
                    return []
                ways.append(way)
                first = first or {node: index for index, node in enumerate(nodes)}
        return ways

    def _search_way(
        self, loss: int, optimizer: int, first: dict[Any, int]
    ) -> tuple[_Way | None, list[Any]]:
        """The shortest one, with its nodes."""
        starts = self._starts[loss]
        nodes = list(starts)
        above: dict[Any, tuple[Any, int]] = {node: (None, at) for at, node in enumerate(starts)}
        for node in nodes:  # which grows
            if node in first or self._holds(optimizer, node):
                edges, passed = list[int](), [node]
                upper, edge = above[node]
                while upper is not None:
                    edges.append(edge)
                    passed.append(upper)
                    upper, edge = above[upper]
                way = _Way(loss, optimizer, edge, edges[::-1], first.get(node, -1))
                return way, passed[::-1]
            if _is_opaque(node) or len(nodes) > MAX_NODES:
                continue
            for index, (below, _) in enumerate(node.next_functions):
                if below is not None and below not in above:
                    above[below] = node, index
                    nodes.append(below)
        return None, []

    def _remember(self, near: int) -> None:
        """Compare the answer with that of the last such backward."""
        answers = self._answers
        doubt = self.unknown or self._hiding or self._opaque or self.inside
        same = answers.reached == self._reached and not doubt
        answers.reached, answers.same = self._reached, answers.same + 1 if same else 0
        answers.near = near
        answers.confirmed = 0
        if not same:
            answers.ways = []
        elif answers.same >= SAME and not answers.ways and answers.searches < MAX_SEARCHES:
            answers.searches += 1
            answers.ways = self._search_ways()

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


def _is_opaque(node: Any) -> bool:
    """Whether it is not known which inputs of a node an output of it depends on."""
    return isinstance(node, BackwardCFunction) and output_count(node) != 1


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
