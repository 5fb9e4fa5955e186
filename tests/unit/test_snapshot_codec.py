"""A snapshot is data: a round trip changes nothing, and whatever is wrong in one is noticed."""

from __future__ import annotations

import ast
import copy
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradledger_monitor
from gradledger_monitor.evaluation import evaluator_version
from gradledger_monitor.evaluation.engine import Engine
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.evaluation.snapshot_codec import Position, SnapshotError
from gradledger_monitor.evaluation.step_completeness import ArrivedStep
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.model.step_facts import RunInfo
from gradledger_monitor.rules.catalogue import RULES
from gradledger_monitor.rules.definition import Parameter
from helpers.batches import fair_step, step
from helpers.facts import accepted
from museum.record import recorded

RUN = RunInfo("r", "a run", 1, ["SGD"])
INCIDENTS = recorded(Path(__file__).parents[1] / "fixtures" / "records")


def incident(seen: list[bytes]) -> tuple[RunInfo, list[ArrivedStep]]:
    """A recorded script as the evaluator gets it: who speaks, and its steps in order."""
    info, steps = RUN, dict[tuple[int, int], dict[int, schema.StepRecord]]()
    for rank, body in enumerate(seen):
        for line in map(schema.decoder.decode, body.splitlines()):
            if isinstance(line, schema.RunRecord) and not rank:
                info = RunInfo(
                    line.run,
                    line.name,
                    line.world_size,
                    line.optimizers,
                    line.contract,
                    line.declared_scale,
                    line.environment,
                    line.config,
                )
            elif isinstance(line, schema.StepRecord):
                steps.setdefault((line.step, line.optimizer), {})[rank] = line
    order = sorted(steps)
    return info, [ArrivedStep(o, n, 1_000.0 + n, steps[n, o]) for n, o in order]


def restored(fold: RunState, info: RunInfo) -> RunState:
    """Another fold that goes on where this one is."""
    other = RunState(Engine(info), fold.generation)
    other.restore(fold.snapshot())
    return other


def rules_of(fold: RunState) -> dict[str, Any]:
    """The saved attributes of each rule of the first optimizer."""
    data = msgspec.msgpack.decode(zlib.decompress(fold.snapshot()[16:]))
    rules = next(iter(data["engine"]["optimizers"].values()))["rules"]
    return {rule["line"]["rule"]: rule["attributes"] for rule in rules}


# ---------------------------------------------------------------- nothing is lost


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.id()))
def test_a_rule_declares_every_attribute_that_it_changes(rule: Any) -> None:
    made = rule()
    assert set(vars(made)) - set(rule.parameters()) == set(rule.state)
    assert not any(isinstance(getattr(made, name), Parameter) for name in rule.state)


@pytest.mark.parametrize("name", INCIDENTS)
def test_restored_after_every_step_the_rules_judge_alike(name: str) -> None:
    info, steps = incident(INCIDENTS[name])
    whole, part = RunState(Engine(info), 0), RunState(Engine(info), 0)
    for one in steps:
        whole.see(info, one)
        part = restored(part, info)
        part.see(info, one)
        assert repr(part.engine.evaluation()) == repr(whole.engine.evaluation())
    assert part.snapshot() == whole.snapshot() and part.at == whole.at


def test_the_recorded_scripts_move_the_state_of_every_rule_that_has_one() -> None:
    fresh = RunState(Engine(RUN), 0)
    fresh.see(RUN, ArrivedStep(0, 1, 1.0, {0: schema.StepRecord(optimizer=0, step=1, time=1.0)}))
    untouched, moved = rules_of(fresh), set[str]()
    for seen in INCIDENTS.values():
        info, steps = incident(seen)
        fold = RunState(Engine(info), 0)
        for one in steps:
            fold.see(info, one)
        moved |= {rule for rule, now in rules_of(fold).items() if now != untouched[rule]}
    assert moved == {rule.id() for rule in RULES if rule.state}


@pytest.mark.parametrize("name", INCIDENTS)
def test_a_carried_judgement_stays_as_it_was(name: str) -> None:
    info, steps = incident(INCIDENTS[name])
    fold, other = RunState(Engine(info), 0), RunState(Engine(info), 0)
    for one in steps:
        fold.see(info, one)
    before = fold.engine.evaluation()
    other.carry(before, fold.at)
    assert repr(other.engine.evaluation()) == repr(before)
    again = RunState(Engine(info), 0)
    again.restore(other.snapshot())
    assert repr(again.engine.evaluation()) == repr(before)


def test_a_rule_that_failed_in_carried_steps_stays_unmeasured() -> None:
    fold = RunState(Engine(RUN), 0)
    reason = "not_measured: the rule failed: ValueError: bad"
    fold.carry(
        EvaluationResult("incomplete", [], [], {"norm.spike": reason}), Position({0: 5}, steps=5)
    )
    for n in range(6, 200):
        fold.see(RUN, ArrivedStep(0, n, 1_000.0 + n, {0: accepted(fair_step(n))}))
    assert fold.engine.evaluation().coverage["norm.spike"] == reason
    assert fold.engine.evaluation().coverage["norm.vanishing"] == "ok"


# ---------------------------------------------------------------- damage


def long_run() -> RunState:
    """A fold with findings, history and losses."""
    fold = RunState(Engine(RUN), 0)
    for n in range(1, 121):
        record = accepted(step(n) if n % 7 else fair_step(n))
        fold.see(RUN, ArrivedStep(0, n, 1_000.0 + n, {0: record}))
    return fold


LONG = long_run()
SNAPSHOT = LONG.snapshot()


def data() -> Any:
    """What is in the snapshot, to be changed."""
    return msgspec.msgpack.decode(zlib.decompress(SNAPSHOT[16:]))


def sealed(content: Any) -> bytes:
    """A snapshot of other content, with the checksum that it must have."""
    body = zlib.compress(msgspec.msgpack.encode(content))
    return sha256(body).digest()[:16] + body


def refuse(snapshot: bytes, why: str | None = None) -> None:
    """Check that nobody goes on from it."""
    with pytest.raises(SnapshotError, match=why):
        RunState(Engine(RUN), 0).restore(snapshot)


def test_what_is_sealed_again_unchanged_is_restored() -> None:
    other = RunState(Engine(RUN), 0)
    other.restore(sealed(data()))
    assert other.engine.evaluation() == LONG.engine.evaluation()


@given(st.integers(0, len(SNAPSHOT) - 1))
def test_a_truncated_snapshot_is_refused(length: int) -> None:
    refuse(SNAPSHOT[:length])


@settings(max_examples=300)
@given(st.sets(st.integers(0, 8 * len(SNAPSHOT) - 1), min_size=1, max_size=16))
def test_flipped_bits_are_noticed(bits: set[int]) -> None:
    damaged = bytearray(SNAPSHOT)
    for bit in bits:
        damaged[bit // 8] ^= 1 << bit % 8
    refuse(bytes(damaged), "damaged")


def test_another_version_is_refused_whatever_else_is_in_it() -> None:
    refuse(sealed({**data(), "format": 2}), "another version")
    refuse(sealed({"format": 2, "evaluator": evaluator_version.version()}), "another version")
    refuse(sealed({**data(), "evaluator": "0" * 64}), "another version")


def test_what_is_no_snapshot_is_refused() -> None:
    contents: list[Any] = [None, [], {}, "text", 7, {"format": "one", "evaluator": 1}]
    for content in contents:
        refuse(sealed(content), "not valid")
    body = b"not compressed"
    refuse(sha256(body).digest()[:16] + body, "not valid")


# Free by design: evidence differs from rule to rule. Other thresholds mean other settings.
FREE = {"evidence", "thresholds"}


def places(content: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value."""
    inner = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in inner:
        if key not in FREE:
            yield (*at, key)
            if isinstance(value, dict | list):
                yield from places(value, (*at, key))


def inside(content: Any, way: tuple[Any, ...]) -> Any:
    """The value at the end of a way."""
    for key in way:
        content = content[key]
    return content


PLACES = [way for way in places(data()) if way not in (("format",), ("evaluator",))]


@settings(max_examples=300)
@given(st.sampled_from(PLACES))
def test_a_value_of_a_wrong_type_is_refused(way: tuple[Any, ...]) -> None:
    content = data()
    inside(content, way[:-1])[way[-1]] = b"\0"
    refuse(sealed(content), "not valid")


@settings(max_examples=200)
@given(st.sampled_from([way for way in PLACES if isinstance(inside(data(), way), dict)]))
def test_an_unknown_field_is_refused(way: tuple[Any, ...]) -> None:
    content = data()
    inside(content, way)["unknown"] = 1
    refuse(sealed(content), "not valid")


def test_a_missing_field_is_refused() -> None:
    for way in PLACES:
        content = data()
        holder = inside(content, way[:-1])
        by_name = isinstance(holder, dict) and isinstance(way[-1], str)
        if by_name and way[0] != "position":  # a position begins with defaults
            del holder[way[-1]]
            refuse(sealed(content), "not valid")


def test_a_rule_keeps_no_more_than_its_thresholds_allow() -> None:
    content = data()
    rules = content["engine"]["optimizers"][0]["rules"]
    (gaps,) = (r["attributes"]["_gaps"] for r in rules if r["line"]["rule"] == "run.stalled")
    gaps += copy.copy(gaps) * 100
    refuse(sealed(content), "_gaps holds")


# ---------------------------------------------------------------- versions


def test_the_version_covers_all_code_that_evaluation_imports() -> None:
    root = Path(gradledger_monitor.__file__).parent
    todo, seen = [root / "evaluation" / "run_state.py"], set[Path]()
    while todo:
        path = todo.pop()
        if path not in seen:
            seen.add(path)
            todo += imported(path, root)
    covered = set(evaluator_version.sources())
    assert seen <= covered
    assert {path.relative_to(root).parts[0] for path in seen} == {
        *evaluator_version.PACKAGES,
        *(name.partition("/")[0] for name in evaluator_version.MODULES),
    }


def imported(path: Path, root: Path) -> Iterator[Path]:
    """The files of this package that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(root.name):
            base = root.joinpath(*str(node.module).split(".")[1:])
            names = [base / alias.name for alias in node.names]
            files = [base.with_suffix(".py"), *(name.with_suffix(".py") for name in names)]
            yield from (file for file in files if file.exists())


def test_other_code_is_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = evaluator_version.version()
    monkeypatch.setattr(evaluator_version, "sources", lambda: [Path(__file__)])
    assert evaluator_version.version.__wrapped__() != before
