"""Code frames: a few lines of the script with marks below the calls that a finding is about (pure).

Locations of one file whose lines meet are in one frame. Indentation that all its lines share is
removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradledger_monitor.model.code.locations import LABELS, CodeLocation

TAB = 4


@dataclass(frozen=True)
class FrameLine:
    """A line of source. ``start`` and ``end`` are the marked characters, from 0; no mark if equal.

    ``label`` names what the script does at the mark.
    """

    number: int
    text: str
    start: int = 0
    end: int = 0
    label: str = ""


@dataclass(frozen=True)
class CodeFrame:
    """Lines of one file. Without source text, ``lines`` is empty, and ``label`` names what is at
    the position."""

    file: str
    line: int
    function: str
    via: str
    label: str
    lines: tuple[FrameLine, ...]

    @property
    def position(self) -> str:
        """``train.py:31``, as editors and terminals recognise it."""
        return f"{self.file}:{self.line}"

    @property
    def origin(self) -> str:
        """The position, the function, and the package that makes the call for the script."""
        function = f", in {self.function}" if self.function else ""
        via = f", called by {self.via}" if self.via else ""
        return f"{self.position}{function}{via}"


def code_frames(locations: Sequence[CodeLocation]) -> list[CodeFrame]:
    """The frames of the locations, the first location's frame first."""
    groups: list[list[CodeLocation]] = []
    for location in locations:
        group = next((g for g in groups if any(_meet(location, other) for other in g)), None)
        if group is None:
            groups.append([location])
        else:
            group.append(location)
    return [_frame(group) for group in groups]


def _meet(one: CodeLocation, other: CodeLocation) -> bool:
    if one.file != other.file or not (one.source and other.source):
        return False
    first, last = _lines(one)
    other_first, other_last = _lines(other)
    return first <= other_last + 1 and other_first <= last + 1


def _lines(location: CodeLocation) -> tuple[int, int]:
    first = location.first or location.line
    return first, first + len(location.source) - 1


def _frame(locations: Sequence[CodeLocation]) -> CodeFrame:
    head = locations[0]
    texts = {
        number: text.expandtabs(TAB)
        for location in locations
        for number, text in enumerate(location.source, _lines(location)[0])
    }
    indent = min((len(t) - len(t.lstrip()) for t in texts.values() if t.strip()), default=0)
    marks = {location.line: location for location in reversed(locations)}
    lines = [_line(n, texts[n], indent, marks.get(n)) for n in sorted(texts)]
    return CodeFrame(
        head.file, head.line, head.function, head.via, LABELS[head.role], tuple(_trimmed(lines))
    )


def _trimmed(lines: list[FrameLine]) -> list[FrameLine]:
    """Without empty lines at the ends."""
    while lines and not lines[-1].text:
        lines.pop()
    while lines and not lines[0].text:
        lines.pop(0)
    return lines


def _line(number: int, text: str, indent: int, marked: CodeLocation | None) -> FrameLine:
    shown = text[indent:].rstrip()
    if marked is None:
        return FrameLine(number, shown)
    raw = marked.source[number - _lines(marked)[0]]
    start, end = len(raw) - len(raw.lstrip()), len(raw)
    if marked.column is not None:
        start = marked.column - 1
        if marked.end_column is not None and marked.end_line in (None, marked.line):
            end = marked.end_column - 1
    before = len(raw[:start].expandtabs(TAB)) - indent
    width = len(raw[:end].expandtabs(TAB)) - indent
    start, end = max(0, min(before, len(shown))), max(0, min(width, len(shown)))
    return FrameLine(number, shown, start, end, LABELS[marked.role])


def frame_text(frame: CodeFrame, width: int = 100) -> str:
    """A frame as plain text with carets, each line at most ``width`` characters."""
    return "\n".join(_cut(line, width) for line in _text(frame, width))


def _text(frame: CodeFrame, width: int) -> Iterator[str]:
    label = "" if frame.lines else f": {frame.label}"
    margin = len(str(frame.lines[-1].number)) if frame.lines else 0
    yield f"{' ' * margin}--> {frame.origin}{label}"
    if frame.lines:
        yield f"{' ' * margin} |"
    for line in frame.lines:
        yield f"{line.number:>{margin}} | {line.text}".rstrip()
        if line.label:
            before = f"{' ' * margin} | {' ' * line.start}"
            room = width - len(before) - len(line.label) - 1  # the label of a long call is shown
            yield f"{before}{'^' * max(1, min(line.end - line.start, room))} {line.label}"


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"
