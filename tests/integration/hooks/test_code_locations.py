"""Each call is located at its line in the script, in the first windows only, and never a library's.

Scripts are files or cells in text, so that the expected line is found by its comment: ``# <role>``.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gradledger.capture.code import call_sites
from gradledger.capture.code.script_sources import without_secrets
from gradledger.session import Session
from gradledger.settings import Settings
from gradledger.torch_version import at_least
from gradledger_monitor.ingest.schema import CodeLocation
from helpers.training import Recording, recording

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(5, 4), torch.randint(3, (5,))) for _ in range(8)]
K = 2
"""
with_columns = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="code objects have columns from Python 3.11 on"
)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """File names are of each test."""
    yield
    call_sites._packages.clear()


Run = Callable[[str], Recording]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a loop as the file ``train.py`` in the working directory, with the hooks on."""
    monkeypatch.chdir(tmp_path)

    def in_file(loop: str) -> Recording:
        script = tmp_path / "train.py"
        script.write_text(HEAD + loop)
        with recording() as kept:
            exec(compile(script.read_text(), str(script), "exec"), {"__name__": "__main__"})
        return kept

    return in_file


def located(kept: Recording, optimizer: int = 0) -> list[CodeLocation]:
    """All locations of an optimizer, in the order in which they were sent."""
    return [location for record in kept.records(optimizer) for location in record.code]


def lines(kept: Recording) -> dict[str, list[int]]:
    """Line numbers by role."""
    found: dict[str, list[int]] = {}
    for location in located(kept):
        found.setdefault(location.role, []).append(location.line)
    return found


def expected(loop: str) -> dict[str, list[int]]:
    """Line numbers by role, from the comments of the script."""
    found: dict[str, list[int]] = {}
    for number, line in enumerate((HEAD + loop).splitlines(), 1):
        _, mark, roles = line.partition("# at: ")
        for role in roles.split() if mark else ():
            found.setdefault(role, []).append(number)
    return found


PLAIN = """
for index, (x, y) in enumerate(batches):
    loss = F.cross_entropy(model(x), y)  # at: loss
    loss = loss / K  # at: loss
    loss.backward()  # at: backward
    if index % K == 1:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # at: clip_norm
        optimizer.step()  # at: step
        optimizer.zero_grad()  # at: zero_grad
"""
SHARE_FIRST = """
for x, y in batches:
    loss = F.cross_entropy(model(x), y)  # at: loss
    share = len(x) / 5
    (share * loss).backward()  # at: backward
    optimizer.step()  # at: step
    optimizer.zero_grad()  # at: zero_grad
"""
IN_FUNCTIONS = """
class Engine:
    def backward(self, loss, factor):
        # a comment
        (loss * factor).backward()  # at: backward

    def step(self):
        optimizer.step()  # at: step
        model.zero_grad()  # at: zero_grad

def train():
    engine = Engine()
    for x, y in batches:
        with torch.autocast("cpu", enabled=False):
            value = F.cross_entropy(model(x), y)  # at: loss
        engine.backward(value, factor=1.0)
        engine.step()

train()
"""
CLOSURE = """
for x, y in batches:
    def closure():
        optimizer.zero_grad()  # at: zero_grad
        loss = F.cross_entropy(model(x), y)  # at: loss
        loss.backward()  # at: backward
        return loss
    optimizer.step(closure)  # at: step
"""
SCALED = """
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)  # at: new_schedule
for x, y in batches:
    loss = F.cross_entropy(model(x), y)  # at: loss
    scaler.scale(loss).backward()  # at: scaled_backward
    scaler.unscale_(optimizer)  # at: unscale
    nn.utils.clip_grad_value_(model.parameters(), 1.0)  # at: clip_value
    scaler.step(optimizer)  # at: scaler_step step
    scaler.update()  # at: update
    scheduler.step()  # at: schedule
    optimizer.zero_grad()  # at: zero_grad
"""
# What ran last is not certain, so no loss is located.
BRANCH = """
for index, (x, y) in enumerate(batches):
    if index % 2:
        loss = F.cross_entropy(model(x), y)
    else:
        loss = F.cross_entropy(model(x), y, reduction="sum")
    loss.backward()  # at: backward
    optimizer.step()  # at: step
"""
BRANCH_OR_NONE = """
for index, (x, y) in enumerate(batches):
    loss = None
    if y is not None:
        loss = F.cross_entropy(model(x), y)  # at: loss
    loss.backward()  # at: backward
    optimizer.step()  # at: step
"""
AUTOGRAD_GRAD = """
weights = list(model.parameters())
for x, y in batches:
    loss = F.cross_entropy(model(x), y)  # at: loss
    grads = torch.autograd.grad(loss, weights)  # at: backward
    for weight, grad in zip(weights, grads):
        weight.grad = grad
    optimizer.step()  # at: step
"""  # from the second window on, it is known that no backward adds to the gradients
SUMMED_IN_A_LOOP = """
for _ in range(3):
    total = 0.0
    for x, y in batches:
        total = total + F.cross_entropy(model(x), y)
    total.backward()  # at: backward
    optimizer.step()  # at: step
"""
FROM_THE_LAST_ROUND = """
x, y = batches[0]
loss = F.cross_entropy(model(x), y)
for x, y in batches:
    loss.backward()  # at: backward
    optimizer.step()  # at: step
    loss = F.cross_entropy(model(x), y)
"""
LIST_OF_LOSSES = """
losses = []
for x, y in batches:
    losses.append(F.cross_entropy(model(x), y))  # at: loss
losses = torch.stack(losses).mean()  # at: loss
losses.backward()  # at: backward
optimizer.step()  # at: step
"""
LOADER = """
from torch.utils.data import DataLoader
for x, y in DataLoader(batches, batch_size=None):  # at: batches
    F.cross_entropy(model(x), y).backward()  # at: backward loss
    optimizer.step()  # at: step
"""
INLINE = """
for x, y in batches:
    F.cross_entropy(model(x), y).backward()  # at: backward loss
    optimizer.step()  # at: step
"""
LOOPS = {
    "a plain loop": PLAIN,
    "a factor before the loss": SHARE_FIRST,
    "functions": IN_FUNCTIONS,
    "a closure": CLOSURE,
    "a scaler": SCALED,
    "a branch": BRANCH,
    "a branch that always runs": BRANCH_OR_NONE,
    "autograd.grad": AUTOGRAD_GRAD,
    "a sum in a loop": SUMMED_IN_A_LOOP,
    "the last round": FROM_THE_LAST_ROUND,
    "a list": LIST_OF_LOSSES,
    "one expression": INLINE,
    "a loader": LOADER,
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_each_call_is_located_at_its_line(run: Run, loop: str) -> None:
    kept = run(loop)
    assert lines(kept) == expected(loop)
    assert {location.file for location in located(kept)} == {"train.py"}


@with_columns
def test_columns_and_source_show_the_call(run: Run) -> None:
    loop = PLAIN.replace("loss.backward()  #", "name = 'ü'; loss.backward(\n        None)  #")
    backward = next(each for each in located(run(loop)) if each.role == "backward")
    first = backward.source[backward.line - (backward.first or 0)]
    last = backward.source[(backward.end_line or 0) - (backward.first or 0)]
    assert first[(backward.column or 0) - 1 :] == "loss.backward("
    assert last[: (backward.end_column or 0) - 1] == "        None)"


def test_what_is_seen_once_is_sent_once_and_later_windows_number_their_backwards_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    nearest = call_sites.nearest_call_site

    def counted(frame: Any, **options: Any) -> Any:
        looks.append(1)
        return nearest(frame, **options)

    monkeypatch.setattr(call_sites, "nearest_call_site", counted)
    loop = """
for x, y in batches:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
    kept = run(loop)
    assert len(kept.records()) == 8
    assert len(looks) == 8 + call_sites.FIRST_WINDOWS  # backwards, and the first steps
    assert [len(record.code) for record in kept.records()] == [3, *[0] * 7]


def test_a_loop_that_never_steps_is_looked_at_a_limited_number_of_times(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr(call_sites, "MOST_CALLS", 5)
    kept = run(PLAIN.replace("K = 2", "").replace("% K == 1", "== 7"))
    assert set(lines(kept)) == {"backward", "loss"}


LATE = """
for epoch in range(3):
    for index, (x, y) in enumerate(batches[:5]):
        (F.cross_entropy(model(x), y) / K).backward()  # at: loss backward
        if index % K == 1:
            optimizer.step()  # at: step
            optimizer.zero_grad()  # at: zero_grad
    if epoch == 2:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # at: clip_norm
        optimizer.step()  # at: step
        optimizer.zero_grad()
    else:
        model.zero_grad()
"""
BY_HAND = """
optimizer = None
for x, y in batches:
    F.cross_entropy(model(x), y).backward()  # at: loss backward
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad  # at: step
            p.grad = None
"""


def test_a_step_after_an_unusual_window_and_a_call_of_a_new_kind_are_located(run: Run) -> None:
    found, wanted = lines(run(LATE)), expected(LATE)
    assert {role: found.get(role) for role in ("clip_norm", "step")} == {
        role: wanted[role] for role in ("clip_norm", "step")
    }


def test_an_update_by_hand_is_located_as_the_step(run: Run) -> None:
    loop = BY_HAND.replace("batches:", "batches * 3:")
    assert lines(run(loop))["step"] == expected(loop)["step"]


def test_each_optimizer_has_its_own_lines(run: Run) -> None:
    kept = run("""
other = nn.Linear(4, 3)
second = torch.optim.SGD(other.parameters(), lr=0.1)
for x, y in batches:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    F.cross_entropy(other(x), y).backward()
    second.step()
""")
    first, second = (
        {each.line for each in located(kept, optimizer) if each.role == "step"}
        for optimizer in (0, 1)
    )
    assert len(first) == len(second) == 1
    assert first != second


SEVERAL_CALLS = """
def train(loss):
    loss.backward()

for window in range(6):
    train(F.cross_entropy(model(batches[0][0]), batches[0][1]))
    for x, y in batches[1:3]:
        train(F.cross_entropy(model(x), y))
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_backward_has_the_number_of_its_call(run: Run) -> None:
    """Calls of one helper differ by the line that calls it, in every window."""
    records = run(SEVERAL_CALLS).records(0)
    assert [[m.call for m in record.micro_batches] for record in records] == [[1, 2, 2]] * 6


def test_in_a_thread_of_the_script(run: Run) -> None:
    loop = PLAIN.replace("\n", "\n    ").replace("\n    \n", "\n\n").rstrip()
    threaded = f"\nimport threading\ndef train():{loop}\n"
    threaded += "thread = threading.Thread(target=train)\nthread.start()\nthread.join()\n"
    assert lines(run(threaded)) == expected(threaded)


@pytest.mark.filterwarnings("ignore")
def test_under_a_compiler(run: Run) -> None:
    loop = """
def step(x, y):
    loss = F.cross_entropy(model(x), y)  # at: loss
    loss.backward()  # at: backward
    optimizer.step()  # at: step
    optimizer.zero_grad()  # at: zero_grad

compiled = torch.compile(step, backend="eager")
for x, y in batches:
    compiled(x, y)  # at: call
"""
    found = lines(run(loop))
    torch._dynamo.reset()
    right = expected(loop)
    if sys.version_info >= (3, 11) and not at_least((2, 7)):  # Dynamo loses the lines of ``step``
        right = dict.fromkeys(right, right["call"])
    for role in ("backward", "step", "zero_grad"):
        assert found[role] == right[role]


def test_a_cell_of_a_notebook_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, name = HEAD + PLAIN, "/tmp/ipykernel_77/1234.py"
    monkeypatch.setitem(
        linecache.cache, name, (len(cell), None, cell.splitlines(keepends=True), name)
    )
    main = type(sys)("__main__")
    main.__dict__["In"] = ["", "import torch", cell]
    monkeypatch.setitem(sys.modules, "__main__", main)
    with recording() as kept:
        exec(compile(cell, name, "exec"), {"__name__": "__main__"})
    assert lines(kept) == expected(PLAIN)
    assert {location.file for location in located(kept)} == {"In [2]"}


def test_code_without_a_file_has_no_location(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (0, None, ["pass\n"], "<string>")  # as of `python -c`, from Python 3.13 on
    monkeypatch.setitem(linecache.cache, "<string>", text)
    with recording() as kept:
        exec(HEAD + PLAIN, {"__name__": "__main__"})
    assert len(kept.records()) == 4
    assert located(kept) == []


def test_a_file_that_changed_since_the_start_is_located_without_its_text(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradledger.capture.code.script_sources.time.time", lambda: 1.0)
    found = located(run(PLAIN))
    assert {each.role for each in found} == {"backward", "clip_norm", "step", "zero_grad"}
    assert not any(each.source for each in found)


def test_the_text_can_be_switched_off() -> None:
    settings = Settings.from_environment({"GRADLEDGER_SOURCE": "off"})
    sources = Session(settings).recorder.sources
    site = call_sites.nearest_call_site(sys._getframe())
    assert site is not None
    (location,) = sources.locate([call_sites.LocatedCall("step", site)])
    assert (location.line, location.source) == (site.line, [])
    sources.send_text = True
    assert sources.locate([call_sites.LocatedCall("step", site)])[0].source


@pytest.mark.swallows
def test_a_failure_leaves_the_record_without_locations(
    run: Run, monkeypatch: pytest.MonkeyPatch, swallowed: list[Any]
) -> None:
    def fail(*_: object, **options: object) -> None:
        raise ValueError("no frame")

    monkeypatch.setattr(call_sites, "nearest_call_site", fail)
    kept = run(PLAIN)
    assert located(kept) == []
    assert [record.norm is not None for record in kept.records()] == [True] * 4
    assert swallowed


def test_a_library_is_skipped_to_the_line_that_calls_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "somelib.py").write_text("def fit(loss):\n    loss.backward()\n")
    monkeypatch.syspath_prepend(str(package))
    found = located(
        run("""
import somelib
for x, y in batches:
    loss = F.cross_entropy(model(x), y)
    somelib.fit(loss)
    optimizer.step()
""")
    )
    backward = next(each for each in found if each.role == "backward")
    assert (backward.via, backward.line) == ("somelib", 14)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('wandb.login(key="abc")', 'wandb.login(key="abc")'),
        ('api_key = "sk-123"', 'api_key = "***"'),
        ("os.environ['HF_TOKEN'] = 'hf_x'", "os.environ['HF_TOKEN'] = '***'"),
        ("connect(password='p w')", "connect(password='***')"),
        ('x = "0123456789abcdef0123456789abcdef"', 'x = "***"'),
        ('url = "postgres://me:geheim@host/db"', 'url = "postgres://me:***@host/db"'),
        ("tokens = batch['tokens'].sum()", "tokens = batch['tokens'].sum()"),
        ("token_loss(model(ids), labels)", "token_loss(model(ids), labels)"),
    ],
)
def test_secrets_are_removed(line: str, shown: str) -> None:
    assert without_secrets(line) == shown


def test_weights_are_those_without_the_hooks() -> None:
    def trained() -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            model(torch.randn(5, 4)).pow(2).mean().backward()
            optimizer.step()
            model.zero_grad()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    alone = trained()
    with recording():
        assert torch.equal(trained(), alone)
