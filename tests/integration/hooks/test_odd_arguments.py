"""``watch`` with arguments that nobody planned: watched as far as possible, one line for each."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import weakref
from collections.abc import Callable, Iterator
from enum import Enum, IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradledger
from gradledger import session
from gradledger.run_config import MAX_DEPTH, MAX_ENTRIES, MAX_ITEMS, MAX_TEXT, copy_config
from helpers.misbehaving import Server, server, takes
from helpers.training import cross_entropy, tiny_model, windows

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A service that takes everything, for whatever session a test opens."""
    monkeypatch.setenv("GRADLEDGER_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("GRADLEDGER_ON_FINDING", "off")
    with server(takes) as running:
        monkeypatch.setenv("GRADLEDGER_URL", running.url)
        yield running
        open_session = session.current()
        if open_session is not None:
            open_session.close()


def train(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Two steps."""
    for window in windows(2):
        for batch in window:
            cross_entropy(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def recorded(service: Server, **arguments: Any) -> dict[str, Any]:
    """The run record of a training that was watched with these arguments."""
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradledger.watch(**arguments):
        train(optimizer, model)
    assert service.steps() == [1, 2]
    return next(dict(record) for record in service.taken if record["type"] == "run")


# ---------------------------------------------------------------------- optimizers


class NoGroups:
    """No optimizer at all."""

    __slots__ = ()


class Raising:
    """An object whose attributes cannot even be asked for."""

    @property
    def param_groups(self) -> Any:
        raise RuntimeError("not yet")


class Wrapper:
    """Has the groups of an optimizer, and is none that PyTorch knows."""

    def __init__(self, optimizer: Any) -> None:
        self.param_groups = getattr(optimizer, "param_groups", [])


def ways(one: Any, two: Any) -> dict[str, tuple[Any, str]]:
    """Collections of two optimizers, with words of the line that is written, if any."""

    def broken() -> Iterator[Any]:
        yield one
        yield two
        raise KeyError("theirs")

    return {
        "list": ([one, two], ""),
        "dict": ({"generator": one, "discriminator": two}, ""),
        "nested": ({"gan": [one, (two,)]}, ""),
        "generator": ((each for each in (one, two)), ""),
        "generator that raises": (broken(), "KeyError: 'theirs'"),
        "with others": (
            [one, None, NoGroups(), two, 7, "adam"],
            "NoGroups has no param_groups, int",
        ),
        "with one that raises": ([one, Raising(), two], "Raising has no param_groups"),
        "with a wrapper": ([one, Wrapper(one), two], "Wrapper is not a torch.optim.Optimizer"),
        "with a model": (
            [one, nn.Sequential(nn.Linear(1, 1)), two],
            "Sequential has no param_groups",
        ),
    }


@pytest.mark.parametrize("kind", ways(None, None))
def test_every_optimizer_of_a_collection_is_watched(
    kind: str, service: Server, capsys: Capture
) -> None:
    models = [tiny_model(), tiny_model()]
    one, two = (torch.optim.SGD(model.parameters(), lr=0.1) for model in models)
    value, words = ways(one, two)[kind]
    with gradledger.watch(optimizer=value) as ledger:
        assert ledger._session is not None
        tracked = [track.optimizer for track in ledger._session.recorder.windows]
        assert [id(each) for each in tracked] == [id(one), id(two)]
        for model, optimizer in zip(models, (one, two), strict=True):
            train(optimizer, model)
    assert sorted(map(str, service.steps())) == ["1", "1", "2", "2"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == bool(words)
    assert words in "".join(lines)


def test_an_optimizer_given_as_the_model_is_watched(service: Server, capsys: Capture) -> None:
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradledger.watch(optimizer) as ledger:
        assert ledger._session is not None
        assert [t.optimizer for t in ledger._session.recorder.windows] == [optimizer]
        train(optimizer, model)
    assert service.steps() == [1, 2]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("groups", [None, 3, [None], [{"lr": 1}], [[]]])
def test_groups_that_are_none_are_left_out(groups: Any, service: Server, capsys: Capture) -> None:
    model = tiny_model()
    odd = torch.optim.SGD(model.parameters(), lr=0.1)
    odd.param_groups = groups
    recorded(service, optimizer=odd)
    (line,) = capsys.readouterr().err.splitlines()
    reason = "SGD has no param_groups. Pass a torch.optim.Optimizer"
    assert line == f"gradledger: watch(optimizer=...) is ignored: {reason}"


def test_one_that_cannot_be_referred_to_is_left_out(
    service: Server, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any, optimizer: Any) -> None:
        weakref.ref(optimizer.param_groups[0]["params"])  # a list, as an optimizer with slots

    monkeypatch.setattr("gradledger.capture.windows.OpenWindows.window_of", refuse)
    optimizer = torch.optim.SGD(tiny_model().parameters(), lr=0.1)
    gradledger.watch(optimizer=optimizer).close()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "gradledger: SGD is not recorded: TypeError: cannot create weak reference"
    )


# ---------------------------------------------------------------------- names and the model


class Unprintable:
    """No text can be made of it."""

    def __str__(self) -> str:
        raise RuntimeError("theirs")

    __repr__ = __str__


NAMES: list[tuple[Any, str | None, str]] = [
    (Path("a/b"), "a/b", ""),
    (7, "7", ""),
    (0, "0", ""),
    (np.array([1, 2]), "[1 2]", ""),
    ("x" * 300, "x" * 256, "watch(name=...) is truncated to 256 characters"),
    (
        Unprintable(),
        None,
        "watch(name=...) is ignored: it cannot be converted to text (RuntimeError)",
    ),
    ("\udcff", "?", ""),
    ("  ", None, ""),
]


@pytest.mark.parametrize(("value", "name", "line"), NAMES, ids=range(len(NAMES)))
def test_a_name_may_be_anything_that_has_a_text(
    value: Any, name: str | None, line: str, service: Server, capsys: Capture
) -> None:
    run = recorded(service, name=value, project=value)
    assert run["name"] == name if name else run["name"]
    assert run.get("project", "default") == (name or "default")
    lines = [f"gradledger: {line}", f"gradledger: {line.replace('name', 'project')}"]
    assert capsys.readouterr().err.splitlines() == (lines if line else [])


def test_the_model_is_described_in_the_configuration(service: Server) -> None:
    config = recorded(service, model=nn.Linear(4, 3), config={"lr": 1})["config"]
    assert config == {"lr": 1, "model": "Linear", "model_parameters": 15}


def test_a_model_without_countable_parameters_has_its_class(service: Server) -> None:
    assert recorded(service, model=nn.LazyLinear(3))["config"] == {"model": "LazyLinear"}


@pytest.mark.parametrize("model", [[1], "gpt", Unprintable(), {"a": nn.Linear(1, 1)}])
def test_what_is_not_a_model_is_named_in_one_line(
    model: Any, service: Server, capsys: Capture
) -> None:
    assert "config" not in recorded(service, model=model)
    (line,) = capsys.readouterr().err.splitlines()
    kind, shown = type(model).__name__, repr(model) if isinstance(model, str) else "..."
    reason = f"{kind} has no parameters. Pass a torch.nn.Module"
    assert line == f"gradledger: watch(model={shown}) is ignored: {reason}"


def test_the_scripts_description_of_its_model_holds(service: Server) -> None:
    run = recorded(service, model=nn.Linear(4, 3), config={"model": "gpt2"})
    assert run["config"] == {"model": "gpt2", "model_parameters": 15}


# ---------------------------------------------------------------------- configurations


@dataclasses.dataclass
class Options:
    """As scripts have them."""

    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    out: Path = Path("runs")


class Shape(IntEnum):
    """A number with a name."""

    wide = 4


class Kind(Enum):
    """A name."""

    small = "s"


class Plain:
    """Options as attributes."""

    def __init__(self) -> None:
        self.lr = 1


class Legacy:
    """As some libraries have them."""

    def to_dict(self) -> dict[str, int]:
        """Its options."""
        return {"lr": 2}


TAKEN: list[tuple[Any, dict[str, Any]]] = [
    ({"lr": 0.1, "name": "a", "on": True, "none": None}, None),  # type: ignore[list-item]
    (Options(), {"lr": 0.1, "betas": [0.9, 0.95], "out": "runs"}),
    (argparse.Namespace(lr=0.1), {"lr": 0.1}),
    (SimpleNamespace(a=SimpleNamespace(b=1)), {"a": {"b": 1}}),
    (Plain(), {"lr": 1}),
    (Legacy(), {"lr": 2}),
    ({1: "a", None: "b", (2, 3): "c"}, {"1": "a", "None": "b", "(2, 3)": "c"}),
    ({"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True), "d": np.array([7])},
     {"a": 0.5, "b": 3, "c": True, "d": 7}),
    ({"a": math.nan, "b": math.inf}, {"a": "NaN", "b": "Infinity"}),
    ({"a": torch.tensor(0.5), "b": torch.tensor([2])}, {"a": 0.5, "b": 2}),
    ({"a": torch.zeros(2, 3)}, {"a": "tensor of shape [2, 3], torch.float32, cpu"}),
    ({"a": torch.zeros(1, device="meta")}, {"a": "tensor of shape [1], torch.float32, meta"}),
    ({"a": torch.float16, "b": torch.device("cpu")}, {"a": "torch.float16", "b": "cpu"}),
    ({"a": {3}, "b": (1, [2])}, {"a": [3], "b": [1, [2]]}),
    ({"a": Shape.wide, "b": Kind.small}, {"a": 4, "b": "Kind.small"}),
    ({"a": 2**62, "b": 2**64}, {"a": 2**62, "b": str(2**64)}),
    ({"a": b"\xff", "b": "\udcff"}, {"a": "b'\\xff'", "b": "?"}),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), TAKEN, ids=range(len(TAKEN)))
def test_a_configuration_may_hold_what_scripts_hold(
    value: Any, expected: Any, service: Server, capsys: Capture
) -> None:
    assert recorded(service, config=value)["config"] == (value if expected is None else expected)
    assert capsys.readouterr().err == ""


def circle() -> dict[str, Any]:
    """A dictionary in itself."""
    own: dict[str, Any] = {"lr": 1}
    own["own"] = own
    return own


class Changing(dict[str, int]):
    """A mapping that cannot be read to its end."""

    def items(self) -> Any:
        raise RuntimeError("changed size")


CUT: list[tuple[Callable[[], Any], str]] = [
    (lambda: 7, "int is not a mapping of names to values"),
    (lambda: ["lr", 1], "list is not a mapping"),
    (lambda: "lr=1", "str is not a mapping"),
    (circle, f"values nested deeper than {MAX_DEPTH} levels are omitted"),
    (lambda: {"a": "x" * 10**6}, f"texts are truncated to {MAX_TEXT} characters"),
    (
        lambda: {"a": range(3), "b": [0] * 10**6},
        f"only the first {MAX_ITEMS} values of a long list",
    ),
    (lambda: {str(i): i for i in range(10**5)}, f"only the first {MAX_ENTRIES} entries"),
    (
        lambda: {"a": Unprintable(), "b": 1},
        "Unprintable cannot be converted to text (RuntimeError)",
    ),
    (Changing, "it cannot be read (RuntimeError)"),
    (lambda: {"a": Changing(), "b": 1}, "a Changing cannot be read (RuntimeError)"),
    (lambda: {"a": 10**10_000}, "int cannot be converted to text (ValueError)"),
]


@pytest.mark.parametrize(("config", "words"), CUT, ids=range(len(CUT)))
def test_what_of_a_configuration_cannot_be_recorded_is_one_line(
    config: Callable[[], Any], words: str, service: Server, capsys: Capture
) -> None:
    run = recorded(service, config=config())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gradledger: watch(config=...) is not fully recorded: ")
    assert words in line
    assert len(json.dumps(run.get("config", {}))) < 200_000


def test_a_configuration_is_copied_when_it_is_passed() -> None:
    value = {"a": {"b": [1]}}
    copied, problems = copy_config(value)
    value["a"]["b"].append(2)
    assert (copied, problems) == ({"a": {"b": [1]}}, [])


# ---------------------------------------------------------------------- what raises, and metrics


@pytest.mark.parametrize(
    ("name", "value"),
    [("contract", "tokens"), ("contract", ["token"]), ("scale", -1), ("scale", math.nan),
     ("scale", math.inf), ("scale", "many"), ("scale", torch.ones(2)), ("on_finding", "nope"),
     ("on_finding", 3), ("overhead", "most"), ("overhead", [1]), ("overhead", 2),
     ("url", 4777), ("url", "there:4777"), ("url", "http://a:b")],
)  # fmt: skip
def test_a_literal_that_cannot_be_meant_is_a_value_error(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        gradledger.watch(**{name: value})
    assert session.current() is None


@pytest.mark.parametrize("scale", [8, np.float32(8), torch.tensor(8), "8"])
def test_a_scale_may_be_any_number(scale: Any, service: Server) -> None:
    assert recorded(service, scale=scale)["declared_scale"] == 8.0


@pytest.mark.swallows
def test_metrics_that_are_no_numbers_are_left_out(service: Server, capsys: Capture) -> None:
    with gradledger.watch() as watched:
        ledger: Any = watched
        ledger.log_eval(3, loss=torch.tensor(2.0), acc=np.float32(0.5), curve=[1, 2], note="good")
        ledger.log_eval("soon", loss=1.0)
        ledger.checkpoint(Unprintable())
        ledger.log_eval(4, note="good")
    values = [record["values"] for record in service.taken if record["type"] == "eval"]
    assert values == [{"loss": 2.0, "acc": 0.5}]
    first, *_ = capsys.readouterr().err.splitlines()
    assert first == "gradledger: log_eval omits curve, note: pass a single number for each metric"


def test_a_ledger_shows_its_name_and_the_page_of_its_run(service: Server) -> None:
    model = tiny_model()
    with gradledger.watch(name="shown") as ledger:
        assert repr(ledger) == f"Ledger('shown', {service.url})"  # no run before the first step
        train(torch.optim.SGD(model.parameters(), lr=0.1), model)
    run = next(dict(record) for record in service.taken if record["type"] == "run")
    assert repr(ledger) == f"Ledger('shown', {service.url}/runs/{run['run']})"


def test_the_names_that_are_loaded_on_first_use_are_listed() -> None:
    public = {name for name in dir(gradledger) if not name.startswith("_")}
    assert public == {"FindingError", "Ledger", "load", "watch"}
