"""A snapshot is data: a round trip changes nothing, and all damage is detected."""

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
from gradledger.records import Term
from gradledger_monitor.evaluation import evaluator_version
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.evaluation.snapshot_codec import Position, SnapshotError
from gradledger_monitor.evaluation.step_completeness import ArrivedStep
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.model.step_facts import RunInfo
from gradledger_monitor.rules.catalogue import RULES
from gradledger_monitor.rules.definition import Parameter
from helpers.batches import fair_step, step
from helpers.examples import examples, share
from helpers.facts import accepted
from museum.record import recorded

RUN = RunInfo("r", "a run", 1, ["SGD"])
INCIDENTS = recorded(Path(__file__).parents[1] / "fixtures" / "records")


def incident(recorded_ranks: list[bytes]) -> tuple[RunInfo, list[ArrivedStep]]:
    """A recorded script as the evaluator gets it: the run, and its steps in order."""
    info, steps = RUN, dict[tuple[int, int], dict[int, schema.StepRecord]]()
    for rank, body in enumerate(recorded_ranks):
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


def local_sgd() -> tuple[RunInfo, list[ArrivedStep]]:
    """Ranks that never meet in backward, as if they averaged their parameters at each step."""
    info, steps = incident(INCIDENTS["ddp/through_model_module"])
    for one in steps:
        one.records = {
            rank: msgspec.structs.replace(record, averaging=True)
            for rank, record in one.records.items()
        }
    return info, steps


def changes_added_up() -> tuple[RunInfo, list[ArrivedStep]]:
    """Ranks with a balance of 1/R whose models become equal, as if each added the others' changes.

    None of them has this model before, and it is not their average.
    """
    info, steps = incident(INCIDENTS["reduction/averaged_once_more"])
    for one in steps:
        one.records = {
            rank: msgspec.structs.replace(
                record,
                models=schema.Samples(
                    after_backward=[n + rank / 4 for n in range(1, 7)],
                    at_step=[n + (n % 4) / 2 for n in range(1, 7)],
                ),
            )
            for rank, record in one.records.items()
        }
    return info, steps


def further_undivided() -> tuple[RunInfo, list[ArrivedStep]]:
    """A balanced loss, and a mean with a constant that nothing divides by K."""
    mean = Term("MeanBackward0", "mean", 8, weight=0.01 / 8, undivided=True, coefficient=0.01)
    sent = fair_step(1, tokens=(10, 10, 10, 10))
    for micro_batch in sent.micro_batches:
        micro_batch.terms[0].divisors = [4]
        micro_batch.terms.append(mean)
    return RUN, [ArrivedStep(0, 1, 1_001.0, {0: accepted(sent)})]


def restored(state: RunState, info: RunInfo) -> RunState:
    """Another state, restored from a snapshot of this one."""
    other = RunState(info, generation=state.generation)
    other.restore(state.snapshot())
    return other


def rules_of(state: RunState) -> list[dict[str, Any]]:
    """The saved attributes of each rule, by optimizer."""
    data = msgspec.msgpack.decode(zlib.decompress(state.snapshot()[16:]))
    return [
        {rule["outcomes"]["rule"]: rule["attributes"] for rule in optimizer["rules"]}
        for optimizer in data["optimizers"].values()
    ]


# ---------------------------------------------------------------- nothing is lost


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.id()))
def test_a_rule_declares_every_attribute_that_it_changes(rule: Any) -> None:
    instance = rule()
    assert set(vars(instance)) - set(rule.parameters()) == set(rule.state)
    assert not any(isinstance(getattr(instance, name), Parameter) for name in rule.state)
    helpers = [kind for kind in rule.state.values() if hasattr(kind, "state")]
    # mypyc makes an attribute of each instance of what is not declared as that of the class
    assert all("ClassVar" in str(kind.__annotations__.get("state")) for kind in helpers)


@pytest.mark.parametrize("name", INCIDENTS)
def test_rules_restored_again_and_again_give_the_same_result(name: str) -> None:
    info, steps = incident(INCIDENTS[name])
    whole, part = RunState(info), RunState(info)
    # each of the first steps, in which most rules change; later one in four: it takes 7 ms each
    offset = list(INCIDENTS).index(name)  # other steps in each script
    restored_before = set(share([*range(16), *range(16, len(steps), 4)], offset))
    for index, one in enumerate(steps):
        whole.add_step(one)
        part = restored(part, info) if index in restored_before else part
        part.add_step(one)
        if index in restored_before:
            assert repr(part.result()) == repr(whole.result())
    assert repr(part.result()) == repr(whole.result())
    assert part.snapshot() == whole.snapshot() and part.position == whole.position


def test_the_recorded_scripts_change_the_state_of_every_rule_that_has_one() -> None:
    fresh = RunState(RUN)
    fresh.add_step(ArrivedStep(0, 1, 1.0, {0: schema.StepRecord(optimizer=0, step=1, time=1.0)}))
    (untouched,), moved = rules_of(fresh), set[str]()
    others = [local_sgd(), changes_added_up(), further_undivided()]
    for info, steps in [*map(incident, INCIDENTS.values()), *others]:
        state = RunState(info)
        for one in steps:
            state.add_step(one)
        for rules in rules_of(state):
            moved |= {rule for rule, now in rules.items() if now != untouched[rule]}
    assert moved == {rule.id() for rule in RULES if rule.state}


@pytest.mark.parametrize("name", INCIDENTS)
def test_a_carried_result_stays_as_it_was(name: str) -> None:
    info, steps = incident(INCIDENTS[name])
    state, other = RunState(info), RunState(info)
    for one in steps:
        state.add_step(one)
    before = state.result()
    other.carry(before, state.position)
    assert repr(other.result()) == repr(before)
    again = RunState(info)
    again.restore(other.snapshot())
    assert repr(again.result()) == repr(before)


def test_a_rule_that_failed_in_carried_steps_stays_unmeasured() -> None:
    state = RunState(RUN)
    reason = "not_measured: the rule failed: ValueError: bad"
    state.carry(
        EvaluationResult("incomplete", [], [], {"norm.spike": reason}), Position({0: 5}, steps=5)
    )
    for n in range(6, 200):
        state.add_step(ArrivedStep(0, n, 1_000.0 + n, {0: accepted(fair_step(n))}))
    assert state.result().coverage["norm.spike"] == reason
    assert state.result().coverage["norm.vanishing"] == "ok"


# ---------------------------------------------------------------- damage


def long_run() -> RunState:
    """A run with findings, history and losses."""
    state = RunState(RUN)
    for n in range(1, 121):
        record = accepted(step(n) if n % 7 else fair_step(n))
        state.add_step(ArrivedStep(0, n, 1_000.0 + n, {0: record}))
    return state


LONG = long_run()
SNAPSHOT = LONG.snapshot()


def data() -> Any:
    """The content of the snapshot, to be changed."""
    return msgspec.msgpack.decode(zlib.decompress(SNAPSHOT[16:]))


def sealed(content: Any) -> bytes:
    """A snapshot of other content, with its checksum."""
    body = zlib.compress(msgspec.msgpack.encode(content), level=1)
    return sha256(body).digest()[:16] + body


def assert_rejected(snapshot: bytes, reason: str | None = None) -> None:
    """Check that it cannot be restored."""
    with pytest.raises(SnapshotError, match=reason):
        RunState(RUN).restore(snapshot)


def test_an_unchanged_snapshot_is_restored() -> None:
    other = RunState(RUN)
    other.restore(sealed(data()))
    assert other.result() == LONG.result()


@given(st.integers(0, len(SNAPSHOT) - 1))
def test_a_truncated_snapshot_is_rejected(length: int) -> None:
    assert_rejected(SNAPSHOT[:length])


@settings(max_examples=examples(300))
@given(st.sets(st.integers(0, 8 * len(SNAPSHOT) - 1), min_size=1, max_size=16))
def test_flipped_bits_are_detected(bits: set[int]) -> None:
    damaged = bytearray(SNAPSHOT)
    for bit in bits:
        damaged[bit // 8] ^= 1 << bit % 8
    assert_rejected(bytes(damaged), "damaged")


def test_another_version_is_rejected_whatever_its_content() -> None:
    assert_rejected(sealed({**data(), "format": 99}), "another version")
    head = {"format": 99, "evaluator": evaluator_version.version()}
    assert_rejected(sealed(head), "another version")
    assert_rejected(sealed({**data(), "evaluator": "0" * 64}), "another version")


def test_data_that_is_no_snapshot_is_rejected() -> None:
    contents: list[Any] = [None, [], {}, "text", 7, {"format": "one", "evaluator": 1}]
    for content in contents:
        assert_rejected(sealed(content), "not valid")
    body = b"not compressed"
    assert_rejected(sha256(body).digest()[:16] + body, "not valid")


# Free by design: evidence differs between rules, and so does what changed where trouble began;
# the data of outliers is any, and so are the names of layers; other thresholds mean other settings.
FREE = {
    "evidence",
    "changed",
    "departure",
    "_outliers",
    "_with",
    "_without",
    "_since",
    "_by_loss",
    "thresholds",
}


def paths(content: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value."""
    inner = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in inner:
        if key not in FREE:
            yield (*at, key)
            if isinstance(value, dict | list):
                yield from paths(value, (*at, key))


def inside(content: Any, path: tuple[Any, ...]) -> Any:
    """The value at the end of a path."""
    for key in path:
        content = content[key]
    return content


CONTENT = data()
PATHS = [path for path in paths(CONTENT) if path not in (("format",), ("evaluator",))]


@settings(max_examples=examples(300))
@given(st.sampled_from(PATHS))
def test_a_value_of_a_wrong_type_is_rejected(path: tuple[Any, ...]) -> None:
    content = data()
    inside(content, path[:-1])[path[-1]] = b"\0"
    assert_rejected(sealed(content), "not valid")


@settings(max_examples=examples(200))
@given(st.sampled_from([path for path in PATHS if isinstance(inside(CONTENT, path), dict)]))
def test_an_unknown_field_is_rejected(path: tuple[Any, ...]) -> None:
    content = data()
    inside(content, path)["unknown"] = 1
    assert_rejected(sealed(content), "not valid")


def test_a_missing_field_is_rejected() -> None:
    content = data()
    for path in PATHS:
        holder = inside(content, path[:-1])
        by_name = isinstance(holder, dict) and isinstance(path[-1], str)
        if by_name and path[0] != "position":  # the fields of a position have defaults
            field = holder.pop(path[-1])
            assert_rejected(sealed(content), "not valid")
            holder[path[-1]] = field


def test_a_rule_holds_no_more_than_its_thresholds_allow() -> None:
    content = data()
    rules = content["optimizers"][0]["rules"]
    (gaps,) = (r["attributes"]["_gaps"] for r in rules if r["outcomes"]["rule"] == "run.stalled")
    gaps += copy.copy(gaps) * 100
    assert_rejected(sealed(content), "_gaps holds")


# ---------------------------------------------------------------- versions


def test_the_version_covers_all_code_that_evaluation_imports() -> None:
    root = Path(gradledger_monitor.__file__).parent
    pending, visited = [root / "evaluation" / "run_state.py"], set[Path]()
    while pending:
        path = pending.pop()
        if path not in visited:
            visited.add(path)
            pending += imported(path, root)
    covered = set(evaluator_version.sources())
    assert visited <= covered
    assert {path.relative_to(root).parts[0] for path in visited} == {
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
    assert evaluator_version.version_of_sources() != before
