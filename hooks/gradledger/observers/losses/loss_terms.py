"""Observes the losses of a backward: their token counts and weights.

Before backward it walks the graph below each root, opens a term for each loss node, and hooks the
nodes. During backward the hooks read the gradients that arrive, which are the weights.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch

from gradledger import guard
from gradledger.capture import gradient_probe
from gradledger.capture.async_copy import Deferred
from gradledger.capture.isolation import is_plain, isolated, local_part, never_compile
from gradledger.capture.open_records import OpenMicroBatch
from gradledger.capture.open_terms import OpenTerm
from gradledger.observers.base import Observer
from gradledger.observers.below_losses.inputs import FIRST_MICRO_BATCHES, input_of
from gradledger.observers.below_losses.scaling_hooks import ScalingHooks
from gradledger.observers.losses import parts_without_gradient, saved_hooks
from gradledger.observers.losses.autograd_graph import (
    MAX_NODES,
    TooManyNodes,
    below_scaling,
    find_losses,
    find_opaque,
    is_only_scaled,
)
from gradledger.observers.losses.compared_features import (
    gathers_by_function,
    holds_gathered_features,
    only_part,
)
from gradledger.observers.losses.found_losses import Edge, LossNode, sequence_number
from gradledger.observers.losses.input_gradients import InputGradients
from gradledger.observers.losses.loss_nodes import DeclaredLoss, open_term
from gradledger.observers.losses.loss_patterns import head_of
from gradledger.observers.losses.node_names import CTC_LOSS, JOINS, REDUCTIONS
from gradledger.observers.losses.reached_optimizers import ReachedOptimizers
from gradledger.observers.losses.tasks import ModulesBelow, Tasks
from gradledger.observers.losses.upstream import watch_declared, watch_upstream
from gradledger.observers.losses_compiled.dynamo import CompiledGraphs
from gradledger.observers.losses_out_of_sight.adapters import Adapters
from gradledger.observers.losses_out_of_sight.hidden import DECLARE, Inferred
from gradledger.observers.losses_out_of_sight.inference import Evidence
from gradledger.observers.ranks.process_groups import world_size

if TYPE_CHECKING:
    from gradledger.capture.windows import OpenWindows, OptimizerWindow

MAX_TERMS = 256
MAX_TARGETS = 64  # that are copied, evenly spread, for a fingerprint of the data
GATHERED = (
    "the loss holds the features of other ranks as constants, so what each rank's gradient lacks "
    "depends on the others"
)
TOO_LARGE = f"the graph between the root of backward and its losses has over {MAX_NODES} nodes"
GATHERED_BY_FUNCTION = (
    "a function of the script gathers the features of all ranks for the loss: what its backward "
    "makes of their gradients is not known"
)
FEW_LOSSES = 4  # of one backward, of which each is searched for cached features
TOO_MANY = f"more than {MAX_TERMS} loss nodes in one backward"
COMPILED_AUTOGRAD = (
    "backward runs under compiled autograd, which would compile the hooks each time: "
    "gradledger check without --compiled measures it"
)
FREED = "already been freed"  # part of PyTorch's message for the saved tensors of such a graph


class EngineHook:
    """A hook of an autograd node that may fail, and that modes of the script do not see.

    It does not take the recorder's lock: the thread that holds it may wait for this backward.
    """

    __slots__ = ("_guard", "_hook")

    def __init__(self, hook: Callable[..., None], around: guard.fail_open) -> None:
        self._hook, self._guard = hook, around

    @never_compile
    def __call__(self, *args: Any) -> None:
        with isolated(), self._guard:
            self._hook(*args)


class _ThreadState(threading.local):
    declared: DeclaredLoss | None = None  # of the next backward
    numbers: frozenset[int] = frozenset()  # of the losses of the last backward


class LossTerms(Observer):
    """Fills ``loss`` and ``terms`` of every micro-batch, and samples the targets."""

    facts = ("loss", "terms", "fingerprint", "constant_target")

    def __init__(self, windows: OpenWindows) -> None:
        super().__init__()
        self._thread = _ThreadState()
        self._inputs = InputGradients(windows)
        self._reached = ReachedOptimizers(windows)
        self._tasks, self._modules = Tasks(), ModulesBelow()
        self._adapters = Adapters(self.patch)
        self._graphs = CompiledGraphs()
        self._hooks = ScalingHooks()
        self._evidence: dict[str, Evidence] = {}  # of functions that hide their graph, by node

    def install(self) -> None:
        """Adapt loss functions of libraries, and see the graphs that Dynamo captures. Note where
        saved-tensor hooks are active, if this PyTorch does not report them."""
        self._adapters.install()
        self._graphs.install()
        if not saved_hooks.reported and saved_hooks.observable:
            saved_hooks.begin()
            scope = torch.autograd.graph.saved_tensors_hooks
            self.patch(scope, "__enter__", _noting(saved_hooks.entered), always=True)
            self.patch(scope, "__exit__", _noting(saved_hooks.left), always=True)

    def uninstall(self) -> None:
        """Restore everything that ``install`` changed."""
        self._adapters.uninstall()
        self._graphs.uninstall()
        super().uninstall()

    def declare(self, tokens: Any, reduction: Literal["mean", "sum"], scale: float) -> None:
        """Declare the loss of the next backward on this thread."""
        on_device = isinstance(tokens, torch.Tensor)
        count = Deferred(tokens, volatile=True) if on_device else int(tokens)
        self._thread.declared = DeclaredLoss(count, reduction, float(scale))

    def pause(self) -> None:
        """Note no call of a compiled graph while steps are skipped."""
        super().pause()
        self._graphs.paused = True

    def resume(self, windows: list[OptimizerWindow]) -> None:
        """Forget a declaration: its backward was skipped."""
        super().resume(windows)
        self._graphs.paused = False
        self._thread = _ThreadState()

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Walk the graph below each root, hook its loss nodes, and copy loss and targets."""
        if micro_batch.relayed:
            return
        declared, self._thread.declared = self._thread.declared, None
        unreadable = next((root for root in roots if not _is_readable(root)), None)
        if unreadable is not None:
            reason = f"backward starts from a {type(unreadable).__name__}, which holds no numbers"
            micro_batch.missing.update({"terms": reason, "loss": reason})
            return
        if _under_compiled_autograd():
            micro_batch.missing["terms"] = COMPILED_AUTOGRAD
            self._copy_loss(micro_batch, roots)
            return
        graphs = [graph for graph in map(_graph_of, roots) if graph is not None]
        nodes = [graph.node for graph in graphs]
        micro_batch.input_leaves = self._inputs.reach(nodes, micro_batch.has_grad_tensors)
        micro_batch.reaches_input = bool(micro_batch.input_leaves)
        if declared is not None and len(graphs) == 1:
            self._add_declared(micro_batch, graphs[0], declared)
        else:
            self._add_losses(micro_batch, graphs)
        if not micro_batch.terms:
            micro_batch.missing.setdefault("terms", _reason_without_terms(graphs))
            micro_batch.relayed = micro_batch.has_grad_tensors and not _is_scalar(roots)
        self._copy_loss(micro_batch, roots)
        self._copy_target(micro_batch)
        for term in micro_batch.terms:
            if isinstance(term.inferred, Inferred):
                term.inferred.root = micro_batch.loss

    @staticmethod
    def _copy_loss(micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        if _is_scalar(roots):
            # volatile: loops sum their losses in place, into the memory of the first one
            micro_batch.loss = Deferred(roots[0], volatile=True)
        else:
            micro_batch.missing["loss"] = "backward did not start from one scalar"

    @staticmethod
    def _copy_target(micro_batch: OpenMicroBatch) -> None:
        """Copy some targets of the first loss that has any; drop the references to all.

        Not outputs of the model: these change as it is trained, and if the ranks gather them, they
        are equal although the data are not.
        """
        for term in micro_batch.terms:
            target, term.target = term.target, None
            is_data = target is not None and not target.requires_grad
            if is_data and micro_batch.targets is None:
                if micro_batch.reach is not None:
                    micro_batch.reach.target = term
                micro_batch.targets = gradient_probe.read_coordinates(target, MAX_TARGETS)

    def backward_nested(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Add the losses of a checkpointed part: reentrant checkpointing creates its graph now.

        Bare reductions are left out, because the part is mostly a layer of a model.
        """
        declared = any(term.kind == DeclaredLoss.KIND for term in micro_batch.terms)
        if declared or micro_batch.missing.get("terms") in (TOO_MANY, TOO_LARGE):
            return
        for root in roots:
            graph = _graph_of(root)
            if graph is not None and _is_readable(root):
                losses = _losses_of_part(graph)
                if losses:  # the function that runs this backward hides nothing
                    micro_batch.terms = [t for t in micro_batch.terms if t.inferred is None]
                terms = self._add_terms(micro_batch, losses)
                self._reached.nested(micro_batch, [graph.node], terms)
                _number_heads(losses[: len(terms)], terms)
                for term in terms:
                    # the operations between it and the outer root, or below it, are not known
                    term.undivided, term.divisors, term.factors = None, (), ()
                    term.head = 0 if term.head is not None else None
                    micro_batch.missing.pop("terms", None)

    def _add_losses(self, micro_batch: OpenMicroBatch, graphs: list[Edge]) -> None:
        """Add the loss nodes below each root."""
        losses: list[LossNode] = []
        every: list[LossNode] = []
        before, self._thread.numbers = self._thread.numbers, frozenset()
        try:
            for graph in graphs:
                losses = find_losses(graph.node, micro_batch.scaling, graph.output)
                every += losses
                root = graph.node if len(graphs) == 1 else None
                terms = self._add_terms(micro_batch, losses, root)
                if micro_batch.missing.get("terms") == TOO_MANY:
                    return
                self._note_repeats(before, losses, terms)
                self._note_gathered(micro_batch, losses)
                self._note_parts_without_gradient(micro_batch, graph.node, losses)
            if len(micro_batch.terms) > 1:
                micro_batch.task = self._tasks.number(every[0])
            if len(micro_batch.terms) == 1 and losses:
                micro_batch.terms[0].head = self._tasks.number(losses[0])
                inferred = micro_batch.terms[0].inferred
                if isinstance(inferred, Inferred):
                    inferred.alone = is_only_scaled(graphs[-1].node, losses[0].node)
            elif self._reached.begin(micro_batch, every):
                for loss, term in zip(every, micro_batch.terms, strict=True):
                    term.task = self._tasks.number(loss)
            self._name_modules(micro_batch, every)
            nodes = [graph.node for graph in graphs]
            micro_batch.undo += self._hooks.watch(
                nodes, every, micro_batch.terms, micro_batch.number, self._guard_hook
            )
        except TooManyNodes:
            micro_batch.terms.clear()
            micro_batch.missing["terms"] = TOO_LARGE
        except RuntimeError as error:
            if FREED not in str(error):
                raise
            micro_batch.terms.clear()  # this backward fails, or does not reach the freed part
            micro_batch.missing["terms"] = "an earlier backward has freed the graph of the loss"

    def _name_modules(self, micro_batch: OpenMicroBatch, losses: list[LossNode]) -> None:
        """Note the modules from whose outputs several losses are computed.

        A loop may call backward for each of them.
        """
        terms = micro_batch.terms
        alone = len(terms) == 1 and self._tasks.several
        if alone or len(terms) > 1:
            task = terms[0].head if alone else micro_batch.task
            for name, term in zip(self._modules.names(losses, task), terms, strict=True):
                term.module = name

    def _note_repeats(
        self, before: frozenset[int], losses: list[LossNode], terms: list[OpenTerm]
    ) -> None:
        """Note which losses were in the backward before, too: its graph was retained."""
        numbers = [sequence_number(loss.node) for loss in losses]
        for number, term in zip(numbers, terms, strict=False):  # no terms: there are too many
            term.again = number in before
        self._thread.numbers |= {number for number in numbers if number is not None}

    @staticmethod
    def _note_gathered(micro_batch: OpenMicroBatch, losses: list[LossNode]) -> None:
        """Note a loss of which other ranks' features are constants."""
        ranks = world_size()
        if ranks > 1 and any(holds_gathered_features(loss, ranks) for loss in losses):
            micro_batch.missing["gathered"] = GATHERED
        elif ranks > 1 and any(gathers_by_function(loss, ranks) for loss in losses):
            micro_batch.missing["gathered"] = GATHERED_BY_FUNCTION

    @staticmethod
    def _note_parts_without_gradient(
        micro_batch: OpenMicroBatch, graph: Any, losses: list[LossNode]
    ) -> None:
        """Compute the losses again, if something else is added to them that has no gradient."""
        early = micro_batch.number <= parts_without_gradient.FIRST_MICRO_BATCHES
        if not early or len(micro_batch.terms) != len(losses):
            return
        if parts_without_gradient.only_numbers_are_added(graph, losses):
            for loss, term in zip(losses, micro_batch.terms, strict=True):
                term.value = parts_without_gradient.value_of(loss)

    def _add_terms(
        self, micro_batch: OpenMicroBatch, losses: list[LossNode], root: Any = None
    ) -> list[OpenTerm]:
        """Open a term for each loss node, and hook the node. ``root``: the only one, if known."""
        if len(losses) + len(micro_batch.terms) > MAX_TERMS:
            micro_batch.missing["terms"] = TOO_MANY
            micro_batch.terms.clear()
            return []
        terms = [open_term(loss) for loss in losses]
        for loss, term in zip(losses, terms, strict=True):
            if isinstance(term.inferred, Inferred):
                term.inferred.evidence = self._evidence.setdefault(term.kind, Evidence())
            if len(losses) <= FEW_LOSSES:
                term.part = only_part(loss.node)
            if micro_batch.number <= FIRST_MICRO_BATCHES:
                term.input = input_of(loss, root)
        if len(losses) > 1:
            _number_heads(losses, terms)
        _number_functions(losses, terms)
        for loss, term in zip(losses, terms, strict=True):
            micro_batch.undo += watch_upstream(
                loss, term, micro_batch.has_grad_tensors, self._guard_hook
            )
        micro_batch.terms += terms
        return terms

    def _guard_hook(self, hook: Callable[..., None]) -> Callable[..., None]:
        return EngineHook(hook, self._guard)

    def _add_declared(
        self, micro_batch: OpenMicroBatch, root: Edge, declared: DeclaredLoss
    ) -> None:
        """Open a term for the declared loss: the function that hides it if there is one, else the
        root."""
        root = below_scaling(root, micro_batch.scaling)
        node, output = find_opaque(root) or root
        term = OpenTerm(DeclaredLoss.KIND, declared.reduction, declared.tokens)
        undo = watch_declared(node, output, term, declared.scale, self._guard_hook)
        micro_batch.undo.append(undo)
        micro_batch.terms.append(term)


def _losses_of_part(graph: Edge) -> list[LossNode]:
    """The losses of a checkpointed part; none if it is too large, as a layer of a model."""
    try:
        losses = find_losses(graph.node, output=graph.output)
    except TooManyNodes:
        return []
    return [
        loss
        for loss in losses
        if loss.name not in REDUCTIONS and not loss.penalty and loss.path.function is not loss.node
    ]


def _noting(note: Callable[[], None]) -> Callable[[Any], Any]:
    """A wrapper that calls ``note``; without the recorder's lock, like ``EngineHook``."""

    def wrap(original: Any) -> Any:
        def method(*args: Any) -> Any:
            result = original(*args)
            with guard.fail_open("a scope of saved-tensor hooks"):
                note()
            return result

        return method

    return wrap


def _graph_of(root: Any) -> Edge | None:
    """The output of a node that a root is, which is a tensor or a ``GradientEdge``."""
    node = root.grad_fn if isinstance(root, torch.Tensor) else root.node
    return None if node is None else Edge(node, root.output_nr)


def _is_scalar(roots: tuple[Any, ...]) -> bool:
    return len(roots) == 1 and isinstance(roots[0], torch.Tensor) and roots[0].numel() == 1


def _is_readable(root: Any) -> bool:
    return not isinstance(root, torch.Tensor) or is_plain(local_part(root))


def _under_compiled_autograd() -> bool:
    """Whether compiled autograd runs this backward. Its module may be imported at any time."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return module is not None and bool(getattr(module, "compiled_autograd_enabled", False))


def _number_heads(losses: list[LossNode], terms: list[OpenTerm]) -> None:
    heads: dict[int, int] = {}
    results: dict[int, int] = {}
    for loss, term in zip(losses, terms, strict=True):
        joined = loss.link is not None and loss.link[0].name() in JOINS
        if loss.name == CTC_LOSS and not joined:
            continue  # one head may be used at several depths; chunks of one loss are joined
        head, logits = head_of(loss)
        if head is not None:
            term.head = heads.setdefault(id(head), len(heads) + 1)
        if logits is not None:
            term.logits = results.setdefault(id(logits), len(results) + 1)


def _number_functions(losses: list[LossNode], terms: list[OpenTerm]) -> None:
    numbers: dict[int, int] = {}
    for loss, term in zip(losses, terms, strict=True):
        if loss.path.function is not None:
            term.function = numbers.setdefault(id(loss.path.function), len(numbers) + 1)


def _reason_without_terms(roots: list[Edge]) -> str:
    opaque = next(filter(None, map(find_opaque, roots)), None)
    if opaque is None:
        return "no loss node was found below the root of backward"
    return f"the loss is computed inside {opaque.node.name()}, where it cannot be seen: {DECLARE}"
