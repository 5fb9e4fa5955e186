"""Fixes written against the script's own lines, where their pattern is recognised (pure).

Only for fixes that ``tests/museum/fixes`` proves: it applies the change to the source of programs,
and the verdict becomes balanced. Every other finding shows the generic fix of its rule.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from gradledger_monitor.ingest.schema import CodeRole
from gradledger_monitor.model.code.diffs import Change, diff
from gradledger_monitor.model.code.locations import CodeLocation
from gradledger_monitor.model.code.statements import (
    Lines,
    code_of,
    indent_of,
    known_lines,
    recorded_lines,
)
from gradledger_monitor.model.findings import Finding
from gradledger_monitor.rules.clip import after_step
from gradledger_monitor.rules.loop import (
    double_step,
    grads_not_zeroed,
    step_every_microbatch,
    zeroed_before_step,
    zeroed_every_microbatch,
)
from gradledger_monitor.rules.reduction import fixes
from gradledger_monitor.rules.scaler import clip_before_unscale
from gradledger_monitor.rules.scheduler import step_every_microbatch as scheduled_every_microbatch

_BACKWARDS: tuple[CodeRole, ...] = ("backward", "scaled_backward")
_WITH_BACKWARD = ("accelerate", "lightning_fabric")  # whose objects have a method of this name
_OF_A_PLAIN_STEP = ("backward", "step", "zero_grad", "loss", "batches")
_ACCUMULATE = re.compile(r" *with ([A-Za-z_][\w.]*)\.accumulate\(")
_CONDITION = re.compile(r"( *)if .*:")
_COUNTED = re.compile(r" *(for .* in enumerate\(.*\):)")
_WINDOW_LENGTH = re.compile(r"(?:[A-Za-z_]\w*\.)*(?:K|\w*(?:accum|micro_?batch)\w*)", re.I)
_OTHER_COUNT = re.compile(r"size|token|sample|loss|len", re.I)  # micro_batch_size, accum_tokens
_LOOP = re.compile(r"( *)(?:for|while) .*:")


@dataclass(frozen=True)
class Script:
    """The calls of one optimizer, and the lines around them."""

    located: list[CodeLocation]
    lines: Lines  # of the file that is changed
    evidence: dict[str, Any]
    is_only: bool  # no other optimizer has calls

    def only(self, *roles: CodeRole) -> CodeLocation | None:
        """The call of these roles, if no other line has one."""
        calls = {(c.file, c.line): c for c in self.located if c.role in roles}
        return next(iter(calls.values())) if len(calls) == 1 else None

    def between(self, first: CodeLocation, last: CodeLocation) -> list[CodeLocation]:
        """The calls in the lines between two others."""
        return [c for c in self.located if first.line < c.line < last.line]


def fix_in_code(
    finding: Finding, located: Iterable[CodeLocation], is_only: bool, is_late: bool
) -> str:
    """The change of its lines; the generic fix if the script is not recognised.

    ``located`` are the calls of the optimizer that the finding is about; ``is_late``: those of its
    steps may be others.
    """
    pattern = _CHANGES.get(finding.fix)
    if pattern is None or finding.severity == "info" or (is_late and not pattern.holds_later):
        return finding.fix
    calls = list(located)
    files = {c.file for c in calls if c.role in pattern.roles}
    if len(files) != 1:
        return finding.fix
    (file,) = files
    script = Script(calls, known_lines(calls, file), finding.evidence, is_only)
    change = pattern.change(script)
    return finding.fix if change is None else diff(file, change, recorded_lines(calls, file))


# ---------------------------------------------------------------- divisions of the loss


def _changed_backward(
    script: Script, change: Callable[[str, ast.expr, Script], str | None]
) -> Change | None:
    """``change`` gets the line of the only backward, and what it is called on."""
    call = script.only(*_BACKWARDS)
    loss = None if call is None else _loss(script, call)
    if call is None or loss is None:
        return None
    line = script.lines.text[call.line]
    changed = change(line.strip(), loss, script)
    if changed is None:
        return None
    indent = line[: indent_of(line)]
    return Change(call.line, [line], [f"{indent}{changed}"])


def _loss(script: Script, call: CodeLocation) -> ast.expr | None:
    """What a backward is of: ``x`` in ``x.backward()`` and in ``self.manual_backward(x)``."""
    node = script.lines.call(call)
    if node is None or node.keywords or not isinstance(node.func, ast.Attribute):
        return None
    name = node.func.attr
    if not call.via:
        return node.func.value if name == "backward" and not node.args else None
    by_framework = "backward" if call.via in _WITH_BACKWARD else "manual_backward"
    return node.args[0] if name == by_framework and len(node.args) == 1 else None


def _is_method(line: str, loss: ast.expr) -> bool:
    """Whether it is ``loss.backward()``, and no call with the loss as its argument."""
    return line[loss.end_col_offset :].lstrip(" )").startswith(".backward()")


def _divided(line: str, loss: ast.expr, script: Script) -> str | None:
    """``loss.backward()`` becomes ``(loss / 4).backward()``."""
    micro_batches = script.evidence.get("micro_batches")
    scaled = _scaled(loss)
    inner = loss if scaled is None else scaled
    if not isinstance(inner, ast.Name) or not isinstance(micro_batches, int):
        return None
    divided = f"{inner.id} / {micro_batches}"
    in_brackets = scaled is not None or not _is_method(line, loss)
    return _replaced(line, inner, divided if in_brackets else f"({divided})")


def _undivided(line: str, loss: ast.expr, script: Script) -> str | None:
    """``(loss / K).backward()`` becomes ``loss.backward()``."""
    scaled = _scaled(loss)
    inner = loss if scaled is None else scaled
    name, divisor = _division(inner) or (None, None)
    if not isinstance(name, ast.Name) or divisor is None or not _is_window_length(divisor, script):
        return None
    if scaled is None and _is_method(line, loss):
        return f"{name.id}{line[line.rindex('.backward') :]}"
    return _replaced(line, inner, name.id)


def _one_division(script: Script) -> Change | None:
    """Without the division in the line of the backward, or in another statement."""
    return _changed_backward(script, _undivided) or _without_division(script)


def _without_division(script: Script) -> Change | None:
    """Without ``loss = loss / K`` or ``loss /= K``, in the block of the only backward."""
    call = script.only(*_BACKWARDS)
    loss = None if call is None else _loss(script, call)
    if call is None or loss is None:
        return None
    name = _scaled(loss) or loss
    divisions = [
        number
        for number in range(call.line - 1, call.line - 8, -1)
        if _divides(script.lines.statement(number), name, script)
    ]
    if len(divisions) != 1 or not script.lines.is_block(divisions[0], call.line):
        return None
    lines = script.lines.between(divisions[0], call.line)
    return Change(divisions[0], lines[:2], lines[1:2])


def _divides(statement: ast.stmt | None, loss: ast.expr, script: Script) -> bool:
    """Whether a statement does nothing but divide the loss, by K as far as it is known."""
    match statement:
        case ast.Assign([ast.Name(name)], value):
            division = _division(value)
        case ast.AugAssign(ast.Name(name)):
            division = _division(statement)
        case _:
            return False
    if division is None:
        return False
    is_loss = ast.unparse(division[0]) == name == ast.unparse(loss)
    return is_loss and _is_window_length(division[1], script)


def _division(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """What is divided, and by what, in ``loss / K`` and ``loss /= K``."""
    match node:
        case ast.BinOp(divided, ast.Div(), divisor) | ast.AugAssign(divided, ast.Div(), divisor):
            return divided, divisor
    return None


def _is_window_length(divisor: ast.expr, script: Script) -> bool:
    """Whether a divisor is K: that number, or a name if nothing known is divided by another."""
    if isinstance(divisor, ast.Constant):
        return divisor.value == script.evidence.get("micro_batches")
    others = set()
    for number, text in script.lines.text.items():
        statement = script.lines.statement(number)
        if statement is not None:
            others |= {ast.unparse(each) for each in _divisors(statement)}
        elif "/" in code_of(text):
            others.add(text)
    return _is_name(divisor) and others == {ast.unparse(divisor)}


def _divisors(statement: ast.stmt) -> Iterator[ast.expr]:
    return (each[1] for node in ast.walk(statement) if (each := _division(node)) is not None)


def _scaled(loss: ast.expr) -> ast.expr | None:
    """``loss`` in ``scaler.scale(loss)``."""
    is_scaled = (
        isinstance(loss, ast.Call)
        and isinstance(loss.func, ast.Attribute)
        and loss.func.attr == "scale"
        and len(loss.args) == 1
        and not loss.keywords
    )
    return loss.args[0] if is_scaled and isinstance(loss, ast.Call) else None


def _replaced(line: str, node: ast.expr, text: str) -> str | None:
    if not line.isascii():  # columns of syntax trees count bytes
        return None
    return f"{line[: node.col_offset]}{text}{line[node.end_col_offset :]}"


def _divided_by_accelerate(script: Script) -> Change | None:
    """``loss.backward()`` becomes ``accelerator.backward(loss)``, below ``accumulate``.

    ``accelerator.backward(loss)`` becomes ``accelerator.backward(loss / 4)``, where nothing shows
    that Accelerate accumulates.
    """
    call = script.only(*_BACKWARDS)
    if call is None:
        return None
    if call.via:
        accumulates = any(".accumulate(" in line for line in script.lines.text.values())
        return None if accumulates else _changed_backward(script, _divided)
    above = script.lines.header(call.line, _ACCUMULATE)
    if above is None:
        return None

    def change(line: str, loss: ast.expr, script: Script) -> str | None:
        source = ast.get_source_segment(line, loss)
        end = line[line.rindex(".backward()") + len(".backward()") :]
        return None if source is None else f"{above.group(1)}.backward({source}){end}"

    return _changed_backward(script, change)


# ---------------------------------------------------------------- the order of calls


def _zeroed_after_step(script: Script) -> Change | None:
    """``optimizer.zero_grad()`` after the only step."""
    call = script.only("step")
    optimizer = None if call is None else _stepped(script, call)
    if call is None or optimizer is None or call.via not in ("", "accelerate"):
        return None
    line = script.lines.text[call.line]
    indent = line[: indent_of(line)]
    return Change(call.line, [line], [line, f"{indent}{optimizer}.zero_grad()"])


def _stepped(script: Script, call: CodeLocation) -> str | None:
    """How the script calls the optimizer in ``optimizer.step()`` or ``scaler.step(optimizer)``."""
    node = script.lines.call(call)
    if node is None or not isinstance(node.func, ast.Attribute) or node.func.attr != "step":
        return None
    by_scaler = any(
        c.role == "scaler_step" and (c.file, c.line) == (call.file, call.line)
        for c in script.located
    )
    if node.keywords or len(node.args) != int(by_scaler):
        return None
    optimizer = node.args[0] if by_scaler else node.func.value
    return ast.unparse(optimizer) if _is_name(optimizer) else None


def _is_name(node: ast.expr) -> bool:
    """``optimizer``, or ``self.optimizer``."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _unscaled_before_clip(script: Script) -> Change | None:
    """``scaler.unscale_(optimizer)`` before the clip, which is in the block of the step."""
    clip, step = script.only("clip_norm", "clip_value"), script.only("scaler_step")
    unscaled = any(c.role == "unscale" for c in script.located)
    if clip is None or step is None or clip.via or step.via or unscaled or not script.is_only:
        return None
    node, optimizer = script.lines.call(step), _stepped(script, step)
    if node is None or optimizer is None or not isinstance(node.func, ast.Attribute):
        return None
    is_statement = script.lines.statement(clip.line) is not None
    if not is_statement or not script.lines.is_block(clip.line, step.line):
        return None
    line = script.lines.text[clip.line]
    indent = line[: indent_of(line)]
    added = f"{indent}{ast.unparse(node.func.value)}.unscale_({optimizer})"
    return Change(clip.line, [line], [added, line])


def _stepped_once(script: Script) -> Change | None:
    """Without the second of two steps in one block: of two equal ones, or the loop's after that of
    the ``GradScaler``."""
    steps = {c.line: c for c in script.located if c.role == "step"}
    if len(steps) != 2 or any(c.via for c in steps.values()):
        return None
    first, second = sorted(steps)
    names = {_stepped(script, steps[line]) for line in (first, second)}
    node = script.lines.call(steps[second])
    if len(names) != 1 or None in names or node is None or node.args:
        return None
    between = any(c.role in _BACKWARDS for c in script.between(steps[first], steps[second]))
    if between or not script.lines.is_block(first, second):
        return None
    lines = script.lines.between(first, second)
    return Change(first, lines, lines[:-1])


def _zeroed_after_and_not_before(script: Script) -> Change | None:
    """The only ``zero_grad`` is before the step in its block: it moves behind it."""
    zeroed, step = script.only("zero_grad"), script.only("step")
    if zeroed is None or step is None or zeroed.via or step.via or not script.is_only:
        return None
    optimizer, node = _stepped(script, step), script.lines.call(zeroed)
    if optimizer is None or node is None or not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr != "zero_grad" or ast.unparse(node.func.value) != optimizer:
        return None
    if not script.lines.is_block(zeroed.line, step.line):
        return None
    lines = script.lines.between(zeroed.line, step.line)
    return Change(zeroed.line, lines, [*lines[1:], lines[0]])


def _clipped_before_step(script: Script) -> Change | None:
    """The only clip is after the step in its block, and moves before it, unless it is scaled."""
    clip, step = script.only("clip_norm", "clip_value"), script.only("step")
    scaled = any(c.role == "scaler_step" for c in script.located)
    if clip is None or step is None or clip.via or step.via or scaled or not script.is_only:
        return None
    optimizer, statement = _stepped(script, step), script.lines.statement(clip.line)
    if optimizer is None or statement is None:
        return None
    calls = any(c.role in _BACKWARDS or c.role == "zero_grad" for c in script.between(step, clip))
    if calls or not script.lines.is_block(step.line, clip.line):
        return None
    lines = script.lines.between(step.line, clip.line)
    return Change(step.line, lines, [lines[-1], *lines[:-1]])


def _zeroed_with_step(script: Script) -> Change | None:
    """The only ``zero_grad``, of each micro-batch, moves behind the only step."""
    return _moved_behind_step(script, "zero_grad")


def _scheduled_with_step(script: Script) -> Change | None:
    """The only step of the schedule, of each micro-batch, moves behind that of the optimizer."""
    return _moved_behind_step(script, "schedule")


def _moved_behind_step(script: Script, role: CodeRole) -> Change | None:
    """What one statement does in each micro-batch is done after the step.

    The step is below a condition in the block of the statement, or the statement in a loop in the
    block of the step. Below two conditions, one may be a guard that leaves steps out.
    """
    moving, step = script.only(role), script.only("step")
    if moving is None or step is None or moving.via or step.via or not script.is_only:
        return None
    if moving.function != step.function or _stepped(script, step) is None:
        return None
    node = script.lines.call(moving)
    if node is None or not isinstance(node.func, ast.Attribute) or not _is_name(node.func.value):
        return None
    first, last = sorted((moving.line, step.line))
    if any(number not in script.lines.text for number in range(first, last + 1)):
        return None
    text = script.lines.text
    indents = {line: indent_of(text[line]) for line in (first, last)}
    is_below = indents[step.line] > indents[moving.line]
    inner, around = (step, _CONDITION) if is_below else (moving, _LOOP)
    above = script.lines.header(inner.line, around)
    if above is None or len(above.group(1)) != min(indents.values()):
        return None
    if not script.lines.has_neighbour(moving.line):
        return None
    moved = f"{text[step.line][: indents[step.line]]}{text[moving.line].strip()}"
    lines = script.lines.between(first, last)
    if moving.line < step.line:
        return Change(first, lines, [*lines[1:], moved])
    return Change(first, lines, [lines[0], moved, *lines[1:-1]])


def _stepped_once_per_window(script: Script) -> Change | None:
    """Step and ``zero_grad`` of each micro-batch are done at the end of a window of K, or of all.

    The only divisor has the name of a window's length: another one would be too much.
    """
    step, zeroed, call = script.only("step"), script.only("zero_grad"), script.only(*_BACKWARDS)
    if step is None or zeroed is None or call is None or not script.is_only:
        return None
    optimizer, length = _stepped(script, step), _named_window_length(script)
    counter, node = _counter(script, step.line), script.lines.call(zeroed)
    if optimizer is None or length is None or counter is None or node is None:
        return None
    of_it = ast.unparse(node.func) == f"{optimizer}.zero_grad" and zeroed.line == step.line + 1
    if not of_it or not script.lines.is_block(call.line, zeroed.line):
        return None
    if any(c.via or c.role not in _OF_A_PLAIN_STEP for c in script.located):
        return None  # clipping and the schedule belong into the condition, too
    lines = script.lines.between(step.line, zeroed.line)
    indent = lines[0][: indent_of(lines[0])]
    i, batches = counter
    condition = f"{indent}if ({i} + 1) % {length} == 0 or {i} + 1 == len({batches}):"
    return Change(step.line, lines, [condition, *(f"    {line}" for line in lines)])


def _counter(script: Script, line: int) -> tuple[str, str] | None:
    """``i`` and ``batches`` of ``for i, batch in enumerate(batches):``, which counts from 0.

    ``batches`` has a length: a known line makes a list of it. A loader of a stream has none.
    """
    header = script.lines.header(line, _COUNTED)
    try:
        loop = ast.parse(f"{header.group(1)} pass").body[0] if header else None
    except SyntaxError:
        return None
    match loop:
        case ast.For(ast.Tuple([ast.Name(i), *_]), ast.Call(_, [ast.Name(batches)], [])):
            return (i, batches) if batches in _lists(script.lines) else None
    return None


def _lists(lines: Lines) -> Iterator[str]:
    """Names that are given a list in known lines."""
    for number in lines.text:
        match lines.statement(number):
            case ast.Assign([ast.Name(name)], ast.List() | ast.ListComp()):
                yield name


def _named_window_length(script: Script) -> str | None:
    """The name of K, if it is the only divisor in known lines."""
    divisors = {
        ast.unparse(each)
        for number in script.lines.text
        if (statement := script.lines.statement(number)) is not None
        for each in _divisors(statement)
    }
    name = divisors.pop() if len(divisors) == 1 else ""
    return name if _WINDOW_LENGTH.fullmatch(name) and not _OTHER_COUNT.search(name) else None


@dataclass(frozen=True)
class Pattern:
    """How a fix is written into a script: by ``change``, of the calls with these roles."""

    change: Callable[[Script], Change | None]
    roles: tuple[CodeRole, ...]
    holds_later: bool = True  # also of a finding that begins after the first windows


# loops in which the script itself divides by K: its backward does not
_DIVIDING: tuple[fixes.Loop, ...] = ("plain", "ranks", "fabric", "lightning")
_DIVIDED = Pattern(lambda script: _changed_backward(script, _divided), _BACKWARDS)
_UNDIVIDED = Pattern(_one_division, _BACKWARDS)
_UNSCALED = Pattern(_unscaled_before_clip, ("clip_norm", "clip_value", "scaler_step"), False)
_ONCE = Pattern(_stepped_once, ("step",), False)
_BEFORE_STEP = Pattern(_clipped_before_step, ("clip_norm", "clip_value", "step"), False)

_CHANGES: dict[str, Pattern] = {
    **{fixes.MICRO_BATCH_MEAN[loop]: _DIVIDED for loop in _DIVIDING},
    **{fixes.ONE_DIVISION[loop]: _UNDIVIDED for loop in (*_DIVIDING, "accelerate")},
    fixes.MICRO_BATCH_MEAN["accelerate"]: Pattern(_divided_by_accelerate, _BACKWARDS),
    grads_not_zeroed.FIX: Pattern(_zeroed_after_step, ("step",), False),
    clip_before_unscale.FIX: _UNSCALED,
    clip_before_unscale.of_values(clip_before_unscale.FIX): _UNSCALED,
    double_step.FIX: _ONCE,
    double_step.FIX_SCALED: _ONCE,
    after_step.FIX: _BEFORE_STEP,
    after_step.FIX_VALUES: _BEFORE_STEP,
    zeroed_before_step.FIX: Pattern(_zeroed_after_and_not_before, ("zero_grad", "step"), False),
    zeroed_every_microbatch.FIX: Pattern(_zeroed_with_step, ("zero_grad", "step"), False),
    step_every_microbatch.FIX: Pattern(_stepped_once_per_window, ("step", "zero_grad"), False),
    scheduled_every_microbatch.FIX: Pattern(_scheduled_with_step, ("schedule", "step"), False),
}
