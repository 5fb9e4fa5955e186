"""Records made from the wire schema itself, with the numbers and texts that arithmetic fears most.

``accepted_steps`` draws every field of the schema from its declared type and bounds, so a new field
is covered without a change here. Independent fields rarely form a window that a rule reads to the
end. ``plausible_steps`` therefore starts from a window of a real loop and replaces a few fields.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from gradledger_monitor.ingest import schema

FLOATS = [
    0.0,
    -0.0,
    5e-324,
    1e-310,
    -1e-310,
    2.2250738585072014e-308,
    1e-300,
    1e-160,
    1e-20,
    0.5,
    1.0,
    -1.0,
    4.0,
    65536.0,
    2.0**53,
    2.0**63,
    1e20,
    1e160,
    1e300,
    1e308,
    -1e308,
    1.7976931348623157e308,
]
TEXTS = [
    "NllLossBackward0",
    "MseLossBackward0",
    "MeanBackward0",
    "AddBackward0",
    "\0",
    "#",
    "a#b#c",
    "%s{0}{",
    "\N{RIGHT-TO-LEFT OVERRIDE}\N{PILE OF POO}",
    "<script>alert(1)</script>",
    " ",
    "\n\x1b[31m",
]
MOST = 4  # entries of a list or a dictionary


def values_of(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """JSON values that the wire accepts for one declared type."""
    match kind:
        case inspect.UnionType():
            return st.one_of([values_of(each) for each in kind.types])
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.FloatType():
            least = -float("inf") if kind.ge is None else kind.ge
            return _floats.filter(lambda value: value >= least)
        case inspect.IntType():
            least = -(2**63) if kind.ge is None else kind.ge
            most = kind.le if kind.le is not None else (kind.lt or 2**63) - 1
            known = [n for n in (0, 1, 2, 3, 4, 7, 1_000, 2**31, 2**53) if least <= n <= most]
            return st.sampled_from([*known, least, most]) | st.integers(least, most)
        case inspect.StrType():
            if kind.pattern:
                return st.from_regex(kind.pattern, fullmatch=True)
            return _texts(kind.min_length or 0, kind.max_length or 64)
        case inspect.LiteralType():
            return st.sampled_from(list(kind.values))
        case inspect.ListType():
            most = min(kind.max_length or MOST, MOST)
            return st.lists(values_of(kind.item_type), max_size=most)
        case inspect.DictType():
            return st.dictionaries(
                values_of(kind.key_type), values_of(kind.value_type), max_size=MOST
            )
        case inspect.StructType():
            return _structs(kind)
        case inspect.AnyType():
            return _any
    raise NotImplementedError(type(kind).__name__)


def _texts(least: int, most: int) -> st.SearchStrategy[str]:
    known = [text for text in (*TEXTS, "", "\N{PILE OF POO}" * most) if least <= len(text) <= most]
    return st.sampled_from(known) | st.text(min_size=least, max_size=min(most, 20))


def _structs(kind: inspect.StructType) -> st.SearchStrategy[dict[str, Any]]:
    needed = {f.encode_name: values_of(f.type) for f in kind.fields if f.required}
    optional = {f.encode_name: values_of(f.type) for f in kind.fields if not f.required}
    made = st.fixed_dictionaries(needed, optional=optional)
    tag = {kind.tag_field: kind.tag} if kind.tag_field else {}
    return made.map(lambda fields: {**tag, **fields})


_floats = st.sampled_from(FLOATS) | st.floats(allow_nan=False, allow_infinity=False)
_any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | _floats | st.sampled_from(TEXTS),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_texts(0, 20), inner, max_size=2),
    max_leaves=4,
)
_numbers = _floats | st.sampled_from(["NaN", "Infinity", "-Infinity"])


@cache
def _schema(record: type) -> inspect.Type:
    return inspect.type_info(record)


def accepted(fields: dict[str, Any]) -> Any:
    """The record as the service decodes it."""
    return schema.decoder.decode(msgspec.json.encode(fields))


accepted_steps = values_of(_schema(schema.StepRecord)).map(accepted)
accepted_runs = values_of(_schema(schema.RunRecord)).map(accepted)
evaluations = values_of(_schema(schema.EvalRecord)).map(accepted)


# ---------------------------------------------------------------- windows of real loops


def window(number: int, micro_batches: int = 2, **changes: Any) -> dict[str, Any]:
    """One right step of a language model: a mean over all tokens of ``micro_batches``."""
    tokens = [30 + 10 * index for index in range(micro_batches)]
    batches = [
        {
            "number": index + 1,
            "loss": 3.0,
            "scale": 1024.0,
            "fresh": index == 0,
            "fingerprint": float(number * 10 + index),
            "collectives": int(index == micro_batches - 1),
            "wrapper": "sync" if index == micro_batches - 1 else "no_sync",
            "backward_ms": 3.0,
            "terms": [
                {
                    "kind": "NllLossBackward0",
                    "reduction": "mean",
                    "tokens": count,
                    "size": count,
                    "rows": count,
                    "samples": 2,
                    "positions": 1,
                    "weight": 1024.0 / sum(tokens),
                    "weight_min": 1024.0 / sum(tokens),
                    "weight_max": 1024.0 / sum(tokens),
                    "class_weight": float(count),
                    "undivided": False,
                    "divisors": [float(sum(tokens))],
                    "coefficient": 1.0,
                    "head": 1,
                }
            ],
        }
        for index, count in enumerate(tokens)
    ]
    calls = [
        {"op": "unscale", "after": micro_batches},
        {"op": "clip_norm", "after": micro_batches, "limit": 1.0, "norm": 2.0, "factor": 1.0},
        {"op": "scaler_step", "after": micro_batches},
        {"op": "update", "after": 0},
        {"op": "schedule", "after": 0},
    ]
    return {
        "type": "step",
        "optimizer": 0,
        "step": number,
        "time": 1_000.0 + number,
        "micro_batches": batches,
        "norm": 1.0,
        "post_factor": 0.5 / 1024,
        "events": calls,
        "scaler": {"ordinal": 1, "scale": 1024.0, "tracker": 3},
        "grad_scale": 1.0,
        "lr": 0.1,
        "lrs": [0.1],
        "group_norms": [1.0],
        "zero_share": 0.0,
        "update_ratio": 0.001,
        "noise": [4.0, 2.0],
        "sync": "averaged",
        "wrapper": "ddp",
        "sync_bytes": 1_000,
        "collectives_after": 0,
        "samples": {"after_backward": [1.0, 2.0, 3.0, 4.0], "at_step": [1.0, 2.0, 3.0, 4.0]},
        "parameters": 7.0,
        "sampler": "random",
        "batches": micro_batches,
        "batch_size": 2,
        **changes,
    }


@st.composite
def plausible_steps(draw: st.DrawFn, number: int = 1) -> schema.StepRecord:
    """A window of a real loop, a few of whose fields hold something else that the wire accepts."""
    sync = draw(st.sampled_from(["averaged", "unknown", "none"]))
    wrapper = "ddp" if sync == "averaged" else None
    fields = window(number, draw(st.integers(1, 3)), sync=sync, wrapper=wrapper)
    for _ in range(draw(st.integers(0, 4))):
        _replace_one(draw, fields, _schema(schema.StepRecord))
    record: schema.StepRecord = accepted(fields)
    return record


def _replace_one(draw: st.DrawFn, fields: dict[str, Any], kind: inspect.Type) -> None:
    """Replace one field, or one field of a record inside; with extreme numbers above all."""
    assert isinstance(kind, inspect.StructType)
    field = draw(st.sampled_from(kind.fields))
    name, inner = field.encode_name, _struct_in(field.type)
    if name in ("optimizer", "step"):
        return
    known = fields.get(name)
    if inner is not None and known and draw(st.integers(0, 5)):
        chosen = draw(st.sampled_from(known)) if isinstance(known, list) else known
        _replace_one(draw, chosen, inner)
    elif isinstance(known, float) and field.type is not None and _is_number(field.type):
        new = draw(_numbers)
        fields[name] = new
        if draw(st.booleans()) and name == "weight":
            fields["weight_min"] = fields["weight_max"] = new
    else:
        fields[name] = draw(values_of(field.type))


def _is_number(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.UnionType) and any(
        isinstance(each, inspect.LiteralType) for each in kind.types
    )


def _struct_in(kind: inspect.Type) -> inspect.Type | None:
    """The record type that a field holds, alone or in a list."""
    if isinstance(kind, inspect.UnionType):
        return next(filter(None, map(_struct_in, kind.types)), None)
    if isinstance(kind, inspect.ListType):
        return _struct_in(kind.item_type)
    return kind if isinstance(kind, inspect.StructType) else None


def numbered(record: schema.StepRecord, number: int, optimizer: int = 0) -> schema.StepRecord:
    """The same content as another step."""
    made = copy.copy(record)
    made.step, made.optimizer = number, optimizer
    return made
