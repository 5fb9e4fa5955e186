"""Starts the hooks when ``import torch`` has finished, then removes itself.

It runs in the Python of the training environment. If gradledger is not installed there, it loads
the package from the launcher's environment, and nothing else from there. Until torch is imported,
it imports only modules that every interpreter has already loaded.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

import sys
from _thread import allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

OLDEST = (3, 10)
_LOCK = allocate_lock()


def install() -> None:
    """Start the hooks now if torch is loaded, else after it has been imported."""
    reach_stage("python")
    ImportHook("torch", start).install()


class ImportHook:
    """Calls ``callback`` once a module has been imported: now if it is loaded, else later.

    Before the import it is a meta path finder that delegates the search to the other finders. A
    search is not an import yet (``importlib.util.find_spec("torch")`` only searches), so it stays
    installed until the module has been executed. A module whose import is in progress has none of
    its names yet: ``transformers.trainer`` imports torch, whose import starts the hooks. A module
    of ``importlib.util.LazyLoader`` is executed when it is first used, and not by us.

    It runs within import statements of the script, into which it raises nothing.
    """

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self._callback = callback
        self._searching = False
        self._waiting: list[Callable[[], None]] = []  # one thread takes the callback

    def install(self) -> None:
        """Call back now, at the end of the import in progress, or after an import to come."""
        self._waiting[:] = [self._callback]
        module = sys.modules.get(self._name)
        if module is None:
            sys.meta_path.insert(0, self)
            return
        spec = _spec_of(module)
        if _is_importing(spec) and _call_after_import(spec, self._retry):
            return
        if _is_unused(module):
            self._with_callback(spec)
        else:
            self._call()

    def uninstall(self) -> None:
        """Cancel the call. Safe to call twice."""
        self._waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name or self._searching:
            return None
        self._searching = True
        try:
            return self._with_callback(_find(name))
        except Exception:
            return None  # the other finders are asked next, and fail as without this one
        finally:
            self._searching = False

    def _with_callback(self, spec: ModuleSpec | None) -> ModuleSpec | None:
        loader = spec.loader if spec else None
        if loader is None:
            return spec

        def exec_module(module: ModuleType) -> None:
            execute(module)
            vars(loader).pop("exec_module", None)  # restores the method of the class
            if _is_unused(module):
                self._with_callback(_spec_of(module))
            else:
                self._call()

        try:
            execute = loader.exec_module
            vars(loader)["exec_module"] = exec_module
        except (AttributeError, TypeError) as error:  # such as slots
            _report(self._name, error)
        return spec

    def _retry(self) -> None:
        # An import that failed leaves no module: the next one is awaited.
        if self._waiting:
            self.install()

    def _call(self) -> None:
        try:
            callback = self._waiting.pop()
        except IndexError:
            return
        try:
            self.uninstall()
            callback()
        except Exception as error:
            _report(self._name, error)


def _spec_of(module: ModuleType) -> Any:
    """The spec, without the attribute access that executes a module of ``LazyLoader``."""
    try:
        return object.__getattribute__(module, "__dict__").get("__spec__")
    except Exception:  # the script may enter any object as a module
        return None


def _is_importing(spec: Any) -> bool:
    try:
        return getattr(spec, "_initializing", None) is True
    except Exception:
        return False


def _is_unused(module: ModuleType) -> bool:
    """Whether ``LazyLoader`` has not executed it yet."""
    if type(module) is not getattr(sys.modules.get("importlib.util"), "_LazyModule", None):
        return False
    # In newer Pythons (gh-114763), it changes its class after the execution and not before it.
    state = getattr(_spec_of(module), "loader_state", None)
    return not (isinstance(state, dict) and state.get("is_loading"))


def _call_after_import(spec: Any, callback: Callable[[], None]) -> bool:
    """Call back when the import system sets ``spec._initializing`` to False, its last action.

    False if that cannot be observed.
    """
    try:
        with _LOCK:
            callbacks = vars(type(spec)).get("_after_import")
            if callbacks is None:
                callbacks = []
                spec.__class__ = _observed(type(spec), callbacks)
            callbacks.append(callback)
    except Exception:  # such as slots
        return False
    if not _is_importing(spec):  # it has just ended on another thread
        callback()
    return True


def _observed(kind: type, callbacks: list[Callable[[], None]]) -> type:
    class LoadingSpec(kind):  # type: ignore[misc]
        _after_import = callbacks

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "_initializing" and not value:
                self.__class__ = kind
                while callbacks:
                    callbacks.pop(0)()

    return LoadingSpec


def start() -> None:
    """Start the hooks; a failure is reported with one line on stderr."""
    reach_stage("torch")
    if sys.version_info < OLDEST:
        _write_line("needs Python {}.{} or newer".format(*OLDEST))
        return
    try:
        _load_package()
        from gradledger import torch_version

        if torch_version.check():
            from gradledger import session
            from gradledger.autostart import eager

            eager.force_if_asked()
            session.start_from_environment()
    except Exception as error:
        _write_line(f"{type(error).__name__}: {error}")


def reach_stage(stage: str) -> None:
    """Create an empty file named ``stage``, so that `gradledger check` knows it was reached."""
    import os

    folder = os.environ.get("GRADLEDGER_STAGES")
    if folder:
        try:  # noqa: SIM105 (`contextlib` need not be imported yet)
            open(os.path.join(folder, stage), "ab").close()
        except OSError:
            pass


def _load_package() -> None:
    """Make ``import gradledger`` work: from this environment if installed, else the launcher's."""
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    spec = None if "gradledger" in sys.modules else _find("gradledger")
    if "gradledger" in sys.modules or (spec and spec.origin):
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


def _report(name: str, error: Exception) -> None:
    """Report a failed callback as other failures of the hooks are, if their package is loaded."""
    try:
        guard = sys.modules.get("gradledger.guard")
        if guard is None:
            _write_line(f"{type(error).__name__}: {error}")
        else:
            guard.report(f"what is patched after the import of {name}", error)
    except Exception:  # nosec B110
        pass


def _write_line(reason: str) -> None:
    """Write one line to standard error with ``stderr.py``, loaded by path: no package is needed."""
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    spec = spec_from_file_location("gradledger_stderr", Path(__file__).parents[2] / "stderr.py")
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write_line(f"not started ({reason}); the program runs without the hooks")
