"""Where the script's code calls backward, the optimizer and their helpers.

In the first windows of an optimizer, each counted backward, step and call of the loop looks at the
frames that called it, up to the first one of the script. After that, only what is new is looked at:
the first call of a kind, and the step after a number of micro-batches that no window had before,
such as that of an epoch's tail. A frame gives a code object and an instruction; a background thread
reads the text (``script_sources``). Each counted backward is numbered by its call: a loop that
accumulates calls at one line, and separate losses have a line each.

Frames of PyTorch, of frameworks, of the standard library and of installed packages are skipped. If
no frame of the script exists, as on a thread of the autograd engine, there is no location.
"""

from __future__ import annotations

import functools
import linecache
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

from gradledger import guard
from gradledger.records import CodeRole
from gradledger.torch_version import at_least

FIRST_WINDOWS = 4  # of each optimizer, in which calls are located
MOST_CALLS = 512  # of each optimizer: a loop that never steps stays in its first window
MOST_LOCATIONS = 32  # of each optimizer
MOST_SIZES = 16  # different numbers of micro-batches in a window
MOST_FRAMES = 200
MOST_CALLERS = 2  # functions of the script around a call
MOST_NUMBERS = 64  # calls of backward that have a number, of each optimizer

FABRIC = "lightning_fabric"  # a package, and a part of ``lightning``
ACCELERATOR = "Accelerator"  # a class of ``accelerate``
# Installed packages are recognised by their folder; these also in a source checkout.
FRAMEWORKS = frozenset(
    (
        "accelerate",
        "deepspeed",
        "fairscale",
        "fastai",
        "gradledger",
        "ignite",
        "lightning",
        FABRIC,
        "megatron",
        "peft",
        "pytorch_lightning",
        "ray",
        "sentence_transformers",
        "torch",
        "torchao",
        "torchtitan",
        "torchtune",
        "transformers",
        "trl",
        "ultralytics",
        "unsloth",
    )
)
_PACKAGE_FOLDERS = frozenset(("site-packages", "dist-packages"))
_STANDARD_LIBRARY = tuple(
    str(Path(folder)) + separator
    for folder in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    for separator in ("/", "\\")
)
_SCRIPT = ""  # instead of the name of a package
_NO_FRAMEWORK = (_SCRIPT, "torch", "gradledger")
# Methods of frameworks that run a backward: of the module or the trainer that trains.
_METHODS_OF_OWNERS = frozenset(("backward", "training_step"))

# By file name: the package that a file belongs to, ``_SCRIPT``, or None for code without a source.
_packages: dict[str, str | None] = {}


class CallSite(NamedTuple):
    """A call in the script's code."""

    code: CodeType
    line: int
    instruction: int  # ``f_lasti``
    via: str  # the package that makes the call for the script: "accelerate"; "" if PyTorch
    caller: CallSite | None = None  # of the function of the script that contains it
    owners: tuple[type, ...] = ()  # classes whose method of a framework runs this backward
    computed_by: CodeType | None = None  # a function that the trainer was given for the loss
    computed_elsewhere: bool = False  # the trainer was given one that is not of the script


class LocatedCall(NamedTuple):
    """A site, and what the script does there."""

    role: CodeRole
    site: CallSite
    by_hand: bool = False  # the loop updates its parameters itself, after this backward


class CalledFrom:
    """The sites of one optimizer, found in its first windows."""

    __slots__ = (
        "_guard",
        "_keys",
        "_left",
        "_numbers",
        "_roles",
        "_sizes",
        "by_hand",
        "stepped",
        "unsent",
    )

    def __init__(self) -> None:
        self.by_hand = False  # no optimizer of PyTorch holds the parameters
        self._left = MOST_CALLS
        self._roles: set[CodeRole] = set()  # that were looked at
        self._sizes: set[int] = set()  # micro-batches of the windows that a step has closed
        self._keys: set[tuple[CodeRole, CodeType, int]] = set()
        # of calls of backward, by code object and instruction, with the calls around them
        self._numbers: dict[tuple[tuple[int, int], ...], int] = {}
        self.stepped: set[int | None] = set()  # numbers of calls on which a step was taken
        self._guard = guard.fail_open("the location of a call", self._fail)
        self.unsent: list[LocatedCall] = []

    def is_active(self, windows: int) -> bool:
        """Whether all calls are located; ``windows`` is how many the optimizer has closed."""
        return windows < FIRST_WINDOWS and self._left > 0

    def locate_step(self, windows: int, calls: list[int | None]) -> None:
        """Locate the running step, in the first windows, or after an unusual one.

        ``calls``: the numbers of its backwards.
        """
        self.stepped.update(calls)
        unusual = len(calls) not in self._sizes and len(self._sizes) < MOST_SIZES
        if unusual:
            self._sizes.add(len(calls))
        self.locate("step", 0 if unusual else windows)

    def are_stepped(self, micro_batches: Iterable[Any]) -> bool:
        """Whether all backwards are of calls on whose backwards a step was taken before."""
        calls = {each.call for each in micro_batches}
        return None not in calls and calls <= self.stepped

    def locate(self, role: CodeRole, windows: int) -> None:
        """Locate the running call, in the first windows, or if it is the first of its kind."""
        if self._is_wanted(role, windows):
            with self._guard:
                of_loop = role != "new_schedule"  # libraries without a loop make these, too
                self._add(role, nearest_call_site(sys._getframe(1), of_loop=of_loop))

    def locate_backward(self, role: CodeRole, windows: int, from_hook: bool) -> int | None:
        """Locate the running backward, and number its call: the same lines have the same number.

        ``from_hook``: it is the backward that calls a hook of the script, which called us. None
        after an error, and after as many calls as are located.
        """
        if self._left <= 0:
            return None
        with self._guard:
            frame = sys._getframe(1)
            site = nearest_call_site(_of_backward(frame) if from_hook else frame)
            if self._is_wanted(role, windows):
                self._add(role, site)
            return self._number(site)
        return None

    def _is_wanted(self, role: CodeRole, windows: int) -> bool:
        is_new = role not in self._roles and self._left > 0
        if not is_new and not self.is_active(windows):
            return False
        self._roles.add(role)
        self._left -= 1
        return True

    def _number(self, site: CallSite | None) -> int | None:
        calls = []
        while site is not None:
            calls.append((id(site.code), site.instruction))
            site = site.caller
        if not calls or len(self._numbers) >= MOST_NUMBERS:
            return self._numbers.get(tuple(calls))
        return self._numbers.setdefault(tuple(calls), len(self._numbers) + 1)

    def stop(self) -> None:
        """Locate no more calls."""
        self._left = 0

    def take(self) -> list[LocatedCall]:
        """The sites that were found since the last call."""
        taken, self.unsent = self.unsent, []
        return taken

    def copy_from(self, other: CalledFrom, role: CodeRole) -> None:
        """The sites of one role that another optimizer has not sent: it never stepped."""
        with self._guard:
            for call in other.unsent:
                if call.role == role:
                    self._add(role, call.site)

    def _add(self, role: CodeRole, site: CallSite | None) -> None:
        if site is None or len(self._keys) >= MOST_LOCATIONS:
            return
        key = (role, site.code, site.line)
        if key not in self._keys:
            self._keys.add(key)
            self.unsent.append(LocatedCall(role, site, self.by_hand))

    def _fail(self, where: str, error: Exception) -> None:
        guard.report(where, error)
        self.stop()


def nearest_call_site(frame: FrameType | None, *, of_loop: bool = True) -> CallSite | None:
    """The innermost call of the script; None if there is none, or its source has no file.

    With the calls around it: a helper of the script calls backward for others. ``of_loop``: the
    packages that make the call take part in the loop.
    """
    package_of = _package_of if of_loop else _classified_frame
    sites: list[CallSite] = []
    owners: list[object] = []
    via = ""
    for _ in range(MOST_FRAMES):
        package = None if frame is None else package_of(frame)
        if frame is None or package is None or (sites and package != _SCRIPT):
            break
        if package == _SCRIPT and not _is_without_lines(frame.f_code):
            shown = "" if via in _NO_FRAMEWORK else via
            sites.append(CallSite(frame.f_code, frame.f_lineno or 0, frame.f_lasti, shown))
            if len(sites) > MOST_CALLERS:
                break
        elif package not in _NO_FRAMEWORK:
            owners += _owners(frame)
        via = package
        frame = frame.f_back
    site = None
    for outer in reversed(sites):
        site = outer._replace(caller=site)
    if site is None or not owners:
        return site
    functions = (_function_of_loss(owner) for owner in owners)
    computed_by = next((code for code in functions if code is not None), None)
    has_function = any(_held(owner).get("compute_loss_func") is not None for owner in owners)
    return site._replace(
        owners=tuple(map(type, owners)),
        computed_by=computed_by,
        computed_elsewhere=has_function and computed_by is None,
    )


def _owners(frame: FrameType) -> Iterator[object]:
    """The object whose method runs, and its model, if this trains."""
    code = frame.f_code
    if code.co_name in _METHODS_OF_OWNERS and code.co_varnames[:1] == ("self",):
        owner = frame.f_locals.get("self")
        model = _held(owner).get("model")
        yield from (each for each in (owner, model) if each is not None)


def _held(owner: object) -> dict[str, Any]:
    held: dict[str, Any] = getattr(owner, "__dict__", {})
    return held


def _function_of_loss(owner: object) -> CodeType | None:
    """The function of the script that a trainer was given for the loss: of a Trainer, itself, in a
    ``partial`` or of an object; of one of sentence-transformers, that of a module."""
    held = _held(owner)
    function = held.get("compute_loss_func")
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, MethodType):
        function = function.__func__
    called = type(held.get("loss") if function is None else function)
    for each in (function, *(getattr(called, name, None) for name in ("__call__", "forward"))):
        if isinstance(each, FunctionType) and is_script(each.__code__, each.__module__):
            return each.__code__
    return None


def _is_without_lines(code: CodeType) -> bool:
    """Whether Dynamo of PyTorch 2.6 wrote this code, for a Python where it loses the lines."""
    if at_least((2, 7)) or sys.version_info < (3, 11):
        return False
    convert_frame = sys.modules.get("torch._dynamo.convert_frame")
    return code in getattr(convert_frame, "output_codes", ())


def _of_backward(frame: FrameType | None) -> FrameType | None:
    """The frame of the recorder that runs the backward; None if that is on another thread."""
    while frame is not None and frame.f_code.co_name != "_record_backward":
        frame = frame.f_back
    return frame


def in_use() -> dict[str, str]:
    """Fabric or Accelerate, if it is in the calls of the loop, and no trainer is in one.

    Trainers call parts of these: importing a trainer imports them, and the models of transformers
    import Accelerate.
    """
    packages = set(_packages.copy().values())  # the training thread may add to it
    if FABRIC in packages and packages.isdisjoint(("lightning", "pytorch_lightning")):
        return {FABRIC: "in use"}
    called = FRAMEWORKS.intersection(packages).difference(_NO_FRAMEWORK)
    return {ACCELERATOR: "in use"} if called == {"accelerate"} else {}


def is_script(code: CodeType, module: object) -> bool:
    """Whether a function of a module belongs to the script."""
    return _classified(code.co_filename, module) == _SCRIPT


def _package_of(frame: FrameType) -> str | None:
    name = frame.f_code.co_filename
    try:
        return _packages[name]
    except KeyError:
        package = _packages[name] = _classified_frame(frame)
        return package


def _classified_frame(frame: FrameType) -> str | None:
    return _classified(frame.f_code.co_filename, frame.f_globals.get("__name__"))


def _classified(filename: str, module: object) -> str | None:
    package = module.partition(".")[0] if isinstance(module, str) else ""
    if isinstance(module, str) and module.startswith("lightning.fabric"):
        package = FABRIC
    if package in FRAMEWORKS or filename.startswith("<frozen "):
        return package or "python"
    if filename.startswith("<"):
        # a cell of a notebook, or exec(): Python 3.13 has the text of `python -c` by that name
        has_text = filename in linecache.cache and filename != "<string>"
        return _SCRIPT if has_text else None
    if filename.startswith(_STANDARD_LIBRARY) or _PACKAGE_FOLDERS & set(Path(filename).parts):
        return package or "python"
    return _SCRIPT
