"""Starts the hooks once ``import torch`` has finished, and then steps aside.

Runs in the training environment's own Python, where gradledger need not be installed: the package
is then loaded from where the launcher has it, and nothing else of the launcher's site-packages.
Imports only what an interpreter has loaded anyway; the rest when torch comes.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

OLDEST = (3, 10)


def arm() -> None:
    """Start now if torch is here already, else when it has been imported."""
    note("python")
    if "torch" in sys.modules:
        start()
    else:
        Watcher("torch", start).arm()


class Watcher:
    """A finder that finds nothing itself: it lets the others find a module and waits for the load.

    Being asked is no import yet (``importlib.util.find_spec("torch")`` asks too), so it stays
    until the module has really been executed.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then
        self._asking = False

    def arm(self) -> None:
        """Be asked first."""
        sys.meta_path.insert(0, self)

    def disarm(self) -> None:
        """Be asked no more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name or self._asking:
            return None
        self._asking = True
        try:
            return self._watched(_find(name))
        finally:
            self._asking = False

    def _watched(self, spec: ModuleSpec | None) -> ModuleSpec | None:
        loader = spec.loader if spec else None
        if loader is None:
            return spec
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            vars(loader).pop("exec_module", None)  # the instance's; the class's is whole again
            if self in sys.meta_path:
                self.disarm()
                self._then()

        try:
            loader.exec_module = exec_module  # type: ignore[method-assign]
        except AttributeError as error:
            _say(str(error))
        return spec


def start() -> None:
    """Start the hooks; whatever goes wrong with that is one line on stderr."""
    note("torch")
    if sys.version_info < OLDEST:
        _say("needs Python {}.{} or newer".format(*OLDEST))
        return
    try:
        _package()
        from gradledger import session

        session.start_from_environment()
    except Exception as error:
        _say(f"{type(error).__name__}: {error}")


def note(stage: str) -> None:
    """For a command that wants to know how far its processes come: an empty file."""
    import os

    folder = os.environ.get("GRADLEDGER_SEEN")
    if folder:
        try:  # noqa: SIM105 (`contextlib` need not be imported yet)
            open(os.path.join(folder, stage), "ab").close()
        except OSError:
            pass


def _package() -> None:
    """Make ``import gradledger`` work: the environment's own if it has one, else the launcher's."""
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    spec = None if "gradledger" in sys.modules else _find("gradledger")
    if "gradledger" in sys.modules or (spec and spec.origin):  # a mere folder has no origin
        return
    root = Path(__file__).parents[2]
    spec = spec_from_file_location(
        "gradledger", root / "__init__.py", submodule_search_locations=[str(root)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no loader for {root}")
    sys.modules["gradledger"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


def _find(name: str) -> ModuleSpec | None:
    from importlib.util import find_spec

    return find_spec(name)


def _say(why: str) -> None:
    """One line on standard error, written as the package writes it, which may not be imported."""
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    spec = spec_from_file_location("gradledger_stderr", Path(__file__).parents[2] / "stderr.py")
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write_line(f"not started ({why}); the program goes on without it")
