"""What the calls of a Dynamo graph mean: losses, pure functions, and those that are linear."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional


class LossFunction(NamedTuple):
    """A loss of PyTorch. ``kind``: the autograd node that it has in eager mode."""

    kind: str
    has_classes: bool  # its targets are class indices


LOSSES: dict[Any, LossFunction] = {
    functional.cross_entropy: LossFunction("NllLossBackward0", has_classes=True),
    functional.nll_loss: LossFunction("NllLossBackward0", has_classes=True),
    functional.mse_loss: LossFunction("MseLossBackward0", has_classes=False),
    functional.smooth_l1_loss: LossFunction("SmoothL1LossBackward0", has_classes=False),
    functional.huber_loss: LossFunction("HuberLossBackward0", has_classes=False),
    functional.binary_cross_entropy: LossFunction("BinaryCrossEntropyBackward0", has_classes=False),
    functional.binary_cross_entropy_with_logits: LossFunction(
        "BinaryCrossEntropyWithLogitsBackward0", has_classes=False
    ),
}

ADD, SUBTRACT, MULTIPLY, DIVIDE = "add", "sub", "mul", "div"
REDUCTIONS = frozenset({"sum", "mean"})
ITEM = "item"  # Dynamo passes a number that changes as a tensor, and reads it in the graph

_OPERATORS: dict[Any, str] = {
    operator.add: ADD,
    operator.iadd: ADD,
    operator.sub: SUBTRACT,
    operator.isub: SUBTRACT,
    operator.mul: MULTIPLY,
    operator.imul: MULTIPLY,
    operator.truediv: DIVIDE,
    operator.itruediv: DIVIDE,
    operator.neg: "neg",
    operator.getitem: "getitem",
}
IN_PLACE: dict[Any, Callable[..., Any]] = {  # with the same function, out of place
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}

_CASTS = frozenset({"to", "type_as", "float", "double", "half", "bfloat16", "long", "int", "bool"})
_SHAPES = frozenset(
    {"view", "reshape", "flatten", "contiguous", "squeeze", "unsqueeze", "transpose", "permute"}
    | {"expand", "expand_as", "view_as", "reshape_as", "narrow", "select", "unflatten", "movedim"}
)
MAY_ALIAS = _CASTS | _SHAPES | {"getitem", "detach", "split", "chunk", "unbind"}
# With one argument that depends on a loss, these are linear in it.
LINEAR = (
    _CASTS | _SHAPES | REDUCTIONS | {"neg", "getitem", "clone", "detach", "masked_fill", "where"}
)
LINEAR_IN_ALL = frozenset({ADD, SUBTRACT, "stack", "cat"})

_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_LOGIC = frozenset({"and_", "or_", "invert"})
_PURE_NAMES = (
    LINEAR
    | LINEAR_IN_ALL
    | _COMPARISONS
    | {ITEM}
    | {MULTIPLY, DIVIDE, "size", "numel", "dim", "any", "all", "count_nonzero", "roll", "flip"}
    | {"logical_and", "logical_or", "logical_not", "clamp", "clamp_min", "clamp_max", "argmax"}
    | {"ones_like", "zeros_like", "full_like", "cumsum", "split", "chunk", "unbind", "index_select"}
)
_PURE_OPERATORS = {getattr(operator, name): name for name in (*_COMPARISONS, *_LOGIC)} | {
    operator.floordiv: "floordiv",
    operator.mod: "mod",
}
_BY_FUNCTION: dict[Any, str] = {
    **{getattr(torch, name): name for name in _PURE_NAMES if hasattr(torch, name)},
    **_OPERATORS,
    **_PURE_OPERATORS,
    **dict.fromkeys((functional.pad, getattr(torch._C._nn, "pad", None)), "pad"),
}
_METHOD_ALIASES = {"__and__": "and_", "__or__": "or_", "__invert__": "invert"}
_METHODS = {**{name: name for name in _PURE_NAMES}, **_METHOD_ALIASES}


def name_of(node: Any) -> str | None:
    """The name of the pure function that a node of a graph calls; None if it is not known as one.

    In-place arithmetic has the name of the same function out of place.
    """
    if "out" in node.kwargs:
        return None
    if node.op == "call_method":
        return _METHODS.get(node.target)
    if node.op != "call_function":
        return None
    return _BY_FUNCTION.get(node.target)


def function_of(node: Any) -> Callable[..., Any]:
    """What computes the value of a node of a pure function."""
    if node.op == "call_method":
        return _Method(node.target)
    function: Callable[..., Any] = IN_PLACE.get(node.target, node.target)
    return function


class _Method:
    """Calls a method of its first argument."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, owner: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(owner, self._name)(*args, **kwargs)


def may_mutate(node: Any) -> bool:
    """Whether a node may write to its first argument."""
    if "out" in node.kwargs:
        return True
    if node.op == "call_method":
        return node.target.endswith("_") and not node.target.endswith("__")
    if node.op != "call_function":
        return False
    if node.target in IN_PLACE or node.target is operator.setitem:
        return True
    schema = getattr(node.target, "_schema", None)
    name = getattr(node.target, "__name__", "")
    return bool(getattr(schema, "is_mutable", False)) or (
        name.endswith("_") and not name.endswith("__") and name not in _LOGIC
    )
