"""The source text of a call in the script, on a background thread: file, columns and a few lines.

For a backward, also the statements that built its loss (``loss_statements``).
"""

from __future__ import annotations

import inspect
import io
import linecache
import os
import re
import sys
import time
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from gradledger import guard
from gradledger.capture.code.call_sites import CallSite, LocatedCall, is_script
from gradledger.capture.code.loss_statements import (
    Function,
    Span,
    loss_of_backward,
    loss_of_call,
    loss_returned,
    parsed_file,
    parsed_function,
)
from gradledger.capture.code.update_statements import update_in, update_in_called
from gradledger.identity import replace_surrogates
from gradledger.provenance import repository
from gradledger.records import CodeLocation, CodeRole

LINES_BEFORE, LINES_AFTER = 3, 2  # that are shown around a call
MOST_LINES = 16  # that are sent
MOST_COLUMNS = 240
MAX_PATH = 1_024
BACKWARDS: tuple[CodeRole, ...] = ("backward", "scaled_backward")

_SECRET_NAME = r"(?:token|secret|passw(?:or)?d|passphrase|api_?key|access_?key|credential|auth)"
_SECRETS = (
    re.compile(rf"(?i)({_SECRET_NAME}\w*[\"']?\]?\s*(?::\s*\w+\s*)?[:=]+\s*\w{{0,2}}[\"'])[^\"']+"),
    re.compile(r"([\"'])[A-Za-z0-9_+/=.-]{24,}(?=[\"'])"),  # a long word without a space
    re.compile(r"(://[^/\s:@\"']*:)[^@\s\"']+(?=@)"),  # the password in a URL
)


class ScriptSources:
    """Reads the files of the script, as they were when the hooks were installed."""

    def __init__(self) -> None:
        self.send_text = True  # False: only files and lines
        self._started = time.time()
        try:
            self._folder = Path.cwd()
        except OSError:  # it was removed
            self._folder = Path("/")
        self._lines: dict[str, tuple[str, ...]] = {}
        self._paths: dict[str, str] = {}
        self._with_returns: set[str] = set()  # files whose lines end with CRLF, or some of them

    def locate(self, calls: Sequence[LocatedCall]) -> list[CodeLocation]:
        """The wire records of some calls, and of the losses of the backwards among them."""
        located: list[CodeLocation] = []
        for role, site, by_hand in calls:
            with guard.fail_open("the source of a call"):
                located += self._locate(role, site)
                located += self._update(site) if by_hand and role in BACKWARDS else ()
        return located

    def _update(self, site: CallSite | None) -> Iterator[CodeLocation]:
        """The statement that updates the parameters after a backward, if it is certain."""
        while site is not None:
            lines = self._lines_of(site.code.co_filename)
            function, file = self._function(site.code), parsed_file(lines)
            span = None if function is None else update_in(function, site.line)
            if span is None and function is not None and file is not None:
                span = update_in_called(file, function, site.line)
            if span is not None:
                yield self._location("step", site._replace(via=""), span, lines)
                return
            site = site.caller

    def _locate(self, role: CodeRole, site: CallSite) -> Iterator[CodeLocation]:
        lines = self._lines_of(site.code.co_filename)
        span = _span(site, lines)
        yield self._location(role, site, span, lines)
        built: list[tuple[CallSite, Span]] = []
        if role in BACKWARDS:
            built = self._losses(site, span) or self._for_framework(site, _LOSSES)
        elif role == "batches":
            built = self._for_framework(site, _LOADERS)
        for called, statement in built:
            source = self._lines_of(called.code.co_filename)
            what: CodeRole = "batches" if role == "batches" else "loss"
            yield self._location(what, called._replace(via=""), statement, source)

    def _losses(self, site: CallSite, span: Span) -> list[tuple[CallSite, Span]]:
        """The statements that built the loss, in the order they ran.

        If a function of the script gets the loss as an argument, also those of its caller.
        """
        loss = loss_of_backward(self._function(site.code), span)
        located: list[tuple[CallSite, Span]] = []
        while loss is not None:
            located[:0] = [(site, built) for built in loss.spans]
            caller = site.caller
            if loss.parameter is None or caller is None:
                break
            called_at = _span(caller, self._lines_of(caller.code.co_filename))
            function = self._function(caller.code)
            loss = loss_of_call(function, called_at, site.code, loss.parameter)
            site = caller
        return located

    def _for_framework(
        self, site: CallSite, methods: Mapping[str, Sequence[_Method]]
    ) -> list[tuple[CallSite, Span]]:
        """What the function that the script defines for a framework returns."""
        for method in methods.get(site.via, ()):
            code = method.of_script(site.owners)
            if method.computed_before and site.computed_by is not None:
                return self._returned(site.computed_by, only_named=False)
            if method.computed_before and site.computed_elsewhere:
                return []
            if code is not None:
                text = "\n".join(self._lines_of(site.code.co_filename))
                if any(option in text for option in method.unless):
                    return []
                return self._returned(code, method.only_named)
        return []

    def _returned(self, code: CodeType, only_named: bool) -> list[tuple[CallSite, Span]]:
        loss = loss_returned(self._function(code), only_named)
        called = CallSite(code, code.co_firstlineno, 0, "")
        return [] if loss is None else [(called, span) for span in loss.spans]

    def _function(self, code: CodeType) -> Function | None:
        return parsed_function(self._lines_of(code.co_filename), code)

    def _location(
        self, role: CodeRole, site: CallSite, span: Span, lines: Sequence[str]
    ) -> CodeLocation:
        first = max(1, span.line - LINES_BEFORE)
        last = min(span.end_line + LINES_AFTER, first + MOST_LINES - 1)
        shown = lines[first - 1 : last] if self.send_text else ()
        end = "\r" if site.code.co_filename in self._with_returns else ""
        return CodeLocation(
            role=role,
            file=self._path(site.code.co_filename),
            function="" if site.code.co_name == "<module>" else site.code.co_name[:256],
            via=site.via[:64],
            line=span.line,
            end_line=span.end_line,
            column=span.column,
            end_column=span.end_column,
            first=first if shown else None,
            source=[without_secrets(line) + end for line in shown],
        )

    def _lines_of(self, filename: str) -> tuple[str, ...]:
        """The lines of a file or a cell; none if it cannot be read, or changed since the start."""
        if filename not in self._lines:
            self._lines[filename] = tuple(_cached(filename) or self._read(filename))
        return self._lines[filename]

    def _read(self, filename: str) -> Iterable[str]:
        path = self._folder / filename
        try:
            if path.stat().st_mtime > self._started:
                return ()
            source = path.read_bytes()
            encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
            text = replace_surrogates(source.decode(encoding))
            if "\r" in text:
                self._with_returns.add(filename)
                text = text.replace("\r\n", "\n").replace("\r", "\n")
            return text.split("\n")  # the last one is empty if the text ends with a line end
        except (OSError, UnicodeError, SyntaxError):
            return ()

    def _path(self, filename: str) -> str:
        """Relative to the working directory of the run, or to the repository; a notebook's cell.

        A file in neither is shown by its full path, in which ``~`` replaces the home folder.
        """
        if filename.startswith("<") or "ipykernel" in filename:
            return _cell_name(filename, self._lines_of(filename))
        if filename not in self._paths:
            self._paths[filename] = self._path_of_file(filename)
        return self._paths[filename]

    def _path_of_file(self, filename: str) -> str:
        path = Path(os.path.normpath(self._folder / filename))
        home = Path(os.path.expanduser("~"))
        for folder, prefix in ((self._folder, ""), (repository(path.parent), ""), (home, "~/")):
            if folder is not None and path.is_relative_to(folder):
                return replace_surrogates(prefix + path.relative_to(folder).as_posix())[:MAX_PATH]
        return replace_surrogates(path.as_posix())[:MAX_PATH]


def without_secrets(line: str) -> str:
    """A line of source with literals that look like secrets replaced, and not too long."""
    for pattern in _SECRETS:
        line = pattern.sub(r"\1***", line)
    return line[:MOST_COLUMNS]


def _cached(filename: str) -> list[str]:
    """The lines of code that has no file and was registered: a cell of a notebook, a doctest."""
    cached = linecache.cache.get(filename)
    if cached is None or len(cached) < 3 or cached[1] is not None:
        return []
    return [line.rstrip("\n") for line in cached[2]]


def _cell_name(filename: str, lines: Sequence[str]) -> str:
    """``In [3]``, as the notebook shows the cell."""
    source, cells = "\n".join(lines).rstrip(), getattr(sys.modules.get("__main__"), "In", None)
    if source and isinstance(cells, list):
        for number, cell in enumerate(cells):
            if str(cell).rstrip() == source:
                return f"In [{number}]"
    return filename if filename.startswith("<") else "notebook cell"


# ---------------------------------------------------------------------- the call


def _span(site: CallSite, lines: Sequence[str]) -> Span:
    """Where the call is. Columns are known from Python 3.11 on, where code objects have them."""
    positions = getattr(site.code, "co_positions", None)
    if positions is not None:
        position = next(islice(positions(), site.instruction // 2, None), None)
        if position is not None and None not in position:
            line, end_line, column, end_column = position
            if lines and end_line > len(lines):
                return Span(site.line, site.line)
            if not lines:
                return Span(line, end_line)
            return Span(
                line,
                end_line,
                _character(lines[line - 1], column) + 1,
                _character(lines[end_line - 1], end_column) + 1,
            )
    return Span(site.line, site.line)


def _character(line: str, offset: int) -> int:
    """The character at an offset in bytes of UTF-8."""
    return len(line.encode()[:offset].decode(errors="replace"))


# ---------------------------------------------------------------------- frameworks


class _Method(NamedTuple):
    """Methods that return the loss or the loader, of a class that scripts derive from."""

    module: str
    base: str
    names: tuple[str, ...]
    only_named: bool = False  # they may return something else: the loss is what has that name
    unless: tuple[str, ...] = ()  # options in the script with which the framework computes the loss
    computed_before: bool = False  # a function that the trainer was given takes its place

    def of_script(self, owners: Iterable[type]) -> CodeType | None:
        """The method that the script defines, if there is exactly one.

        Of the class that trains, if that is known: a notebook may define it several times.
        """
        base = getattr(sys.modules.get(self.module), self.base, None)
        if not isinstance(base, type):
            return None
        training = [each for each in owners if issubclass(each, base)]
        codes = {
            function.__code__
            for each in training or _subclasses(base)
            for function in (inspect.getattr_static(each, name, None) for name in self.names)
            if inspect.isfunction(function) and is_script(function.__code__, function.__module__)
        }
        return codes.pop() if len(codes) == 1 else None


_LOSSES = {
    "transformers": (
        _Method("transformers.trainer", "Trainer", ("compute_loss", "training_step")),
        _Method(
            "torch.nn",
            "Module",
            ("forward",),
            only_named=True,
            unless=("compute_loss_func", "label_smoothing_factor"),
            computed_before=True,
        ),
    ),
    "lightning": (_Method("lightning.pytorch", "LightningModule", ("training_step",)),),
    "pytorch_lightning": (_Method("pytorch_lightning", "LightningModule", ("training_step",)),),
}
_LOADERS = {
    "transformers": (_Method("transformers.trainer", "Trainer", ("get_train_dataloader",)),),
    "lightning": (_Method("lightning.pytorch", "LightningModule", ("train_dataloader",)),),
    "pytorch_lightning": (_Method("pytorch_lightning", "LightningModule", ("train_dataloader",)),),
}


def _subclasses(kind: type) -> Iterator[type]:
    children: list[type] = kind.__subclasses__()
    for child in children:
        yield child
        yield from _subclasses(child)
