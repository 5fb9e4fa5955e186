"""`gradledger run` changes the Python processes of a command as little as possible."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from gradledger import guard
from gradledger.autostart.path.gradledger_autostart import ImportHook
from helpers.launching import STARTED, Launch, bare_environment

OTHER_PYTHONS = ["3.10", "3.12", "3.13"]


def script(folder: Path, text: str) -> Path:
    """Write a script."""
    path = folder / "script.py"
    path.write_text(text)
    return path


def torch_of_our_own(folder: Path, text: str = "") -> str:
    """A folder with a stub package `torch`, because only its import matters."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(text)
    return str(folder)


def modules_and_path(done: subprocess.CompletedProcess[str]) -> tuple[set[str], list[str]]:
    """The modules and the path that a script printed."""
    modules, path = json.loads(done.stdout)
    return set(modules), path


def test_a_process_without_torch_loads_no_module_of_gradledger(
    launch: Launch, tmp_path: Path
) -> None:
    path = script(
        tmp_path, "import json, sys; print(json.dumps([sorted(sys.modules), sys.path[1:]]))"
    )
    bare, bare_path = modules_and_path(
        subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    )
    ours, our_path = modules_and_path(launch("run", "--", sys.executable, path))
    assert ours - bare == {"gradledger_autostart", "sitecustomize", "__future__"} - bare
    assert our_path == bare_path


def test_the_users_own_sitecustomize_still_runs(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.mine = 'yes'")
    code = "import sys; print(mine, sys.modules['sitecustomize'].__file__)"
    done = launch("run", "--", sys.executable, "-c", code, PYTHONPATH=str(tmp_path))
    assert done.stdout.split() == ["yes", str(tmp_path / "sitecustomize.py")]


@pytest.mark.parametrize("fails", ["raise RuntimeError('mine')", "import not_there"])
def test_a_failing_sitecustomize_of_the_user_is_reported_as_without_the_hooks(
    launch: Launch, tmp_path: Path, fails: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(fails)
    path = script(tmp_path / "..", "print('ran')")
    bare = subprocess.run(
        [sys.executable, path],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    # -m gradledger.cli is a Python process, too: it reports once, then the command does
    done = launch("run", "--", sys.executable, path, PYTHONPATH=str(tmp_path))
    assert "Error in sitecustomize" in bare.stderr
    assert (done.stdout, done.stderr) == ("ran\n", 2 * bare.stderr)


@pytest.mark.parametrize("flag", ["-S", "-I", "-E", "-sI", "-Bc"])
def test_a_python_without_the_hooks_is_reported_at_once(launch: Launch, flag: str) -> None:
    words = ["-c"] if "c" not in flag else []
    done = launch("run", "--", sys.executable, flag, *words, "print('ran')")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    if flag == "-Bc":
        assert done.stderr == ""
    else:
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"gradledger: python -{flag[-1]} ")
        assert line.endswith(f"Remove -{flag[-1]}, or call gradledger.watch() in the script")


@pytest.mark.parametrize("flag", ["-s", "-B", "-Werror"])
def test_interpreter_flags_still_work(launch: Launch, flag: str) -> None:
    done = launch("run", "--", sys.executable, flag, "-c", "print('ran')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


def test_a_search_for_torch_is_not_an_import(launch: Launch, tmp_path: Path) -> None:
    code = """
import sys, importlib.util
assert importlib.util.find_spec("torch")
assert "gradledger" not in sys.modules
import torch
assert "gradledger" in sys.modules
assert not any("ImportHook" in type(finder).__name__ for finder in sys.meta_path)
assert "exec_module" not in vars(torch.__loader__)
"""
    path = torch_of_our_own(tmp_path / "lib")
    done = launch("run", "--", sys.executable, "-c", code, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("fails", [False, True])
def test_a_module_that_imports_torch_has_its_names_when_the_hook_calls_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    (tmp_path / "inner_module.py").write_text("")
    name = f"outer_module_{fails}"
    end = "if os.environ.pop('FAILS', None): raise OSError" if fails else ""
    (tmp_path / f"{name}.py").write_text(f"import os, inner_module\n{end}\nLATE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FAILS", "1")
    called: list[int] = []
    outer = [ImportHook(name, lambda: called.append(sys.modules[name].LATE)) for _ in range(2)]

    def start() -> None:
        for hook in outer:
            hook.install()

    ImportHook("inner_module", start).install()
    if fails:
        with pytest.raises(OSError):
            importlib.import_module(name)
        assert called == []
    module = importlib.import_module(name)
    assert called == [1, 1]
    assert type(module.__spec__) is ModuleSpec
    assert not [finder for finder in sys.meta_path if isinstance(finder, ImportHook)]
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "inner_module")


def test_a_lazy_module_is_executed_by_its_first_use_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lazy_module.py").write_text("executed = True")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.find_spec("lazy_module")
    assert spec is not None and spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lazy_module", module)
    spec.loader.exec_module(module)
    called: list[str] = []
    ImportHook("lazy_module", lambda: called.append("call")).install()
    assert called == [] and "executed" not in object.__getattribute__(module, "__dict__")
    assert module.executed
    assert called == ["call"]


def test_nothing_is_raised_into_an_import_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "imported_later.py").write_text("LATE = 1")
    (tmp_path / "slotted_spec.py").write_text(
        "import inner_module\nclass Slots: __slots__ = ('_initializing',)\n"
        "__spec__ = Slots()\n__spec__._initializing = True\nimport hook_now\n"
    )
    (tmp_path / "inner_module.py").write_text("")
    (tmp_path / "hook_now.py").write_text("import builtins\nbuiltins.hook_now()")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(guard, "reporter", None)
    called: list[str] = []

    def fail() -> None:
        called.append("call")
        raise KeyError("ours")

    monkeypatch.setattr(
        "builtins.hook_now", ImportHook("slotted_spec", fail).install, raising=False
    )
    ImportHook("imported_later", fail).install()
    ImportHook("inner_module", ImportHook("slotted_spec", fail).install).install()
    for name in ("imported_later", "slotted_spec"):
        importlib.import_module(name)
        monkeypatch.delitem(sys.modules, name)
    assert called == 3 * ["call"]
    assert capsys.readouterr().err.count("(KeyError: 'ours')") == 2


def test_an_import_that_ends_on_another_thread_meanwhile_calls_back_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[int] = []

    class Ending(ModuleSpec):
        """Its import ends right after the class of the spec is assigned."""

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "__class__":
                vars(self)["_initializing"] = False

    module = types.ModuleType("ends_meanwhile")
    module.__spec__ = spec = Ending("ends_meanwhile", None)
    vars(spec)["_initializing"] = True
    monkeypatch.setitem(sys.modules, "ends_meanwhile", module)
    ImportHook("ends_meanwhile", lambda: called.append(1)).install()
    assert called == [1]
    vars(spec)["_initializing"] = True
    spec._initializing = False
    assert called == [1]


def test_a_failing_import_of_torch_fails_as_usual_and_can_be_retried(
    launch: Launch, tmp_path: Path
) -> None:
    broken = "import os\nif 'FIXED' not in os.environ: raise OSError('libtorch.so')"
    code = """
import os, sys
try:
    import torch
except OSError as error:
    print(error)
os.environ["FIXED"] = "1"
import torch
print("gradledger" in sys.modules)
"""
    path = torch_of_our_own(tmp_path / "lib", broken)
    done = launch("run", "--", sys.executable, "-c", code, PYTHONPATH=path)
    assert done.stdout.split() == ["libtorch.so", "True"]


def test_a_failing_start_is_one_line_and_the_program_continues(
    launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "lib" / "gradledger").mkdir(parents=True)
    (tmp_path / "lib" / "gradledger" / "__init__.py").write_text("raise KeyError('theirs')")
    path = torch_of_our_own(tmp_path / "lib")
    code = "import torch; print('trained')"
    # the launcher must find its own package, so only the command sees the broken one
    done = launch(
        "run", "--", "env", f"PYTHONPATH={path_of_autostart()}:{path}", sys.executable, "-c", code
    )
    assert done.stdout == "trained\n"
    assert done.stderr.count("\n") == 1
    assert "gradledger: not started (KeyError: 'theirs')" in done.stderr


def test_nothing_else_of_the_launchers_environment_leaks_into_the_targets(
    launch: Launch, tmp_path: Path
) -> None:
    target = bare_environment(tmp_path / "target")
    code = "import torch, importlib.util as u; print([u.find_spec(n) for n in ('typer', 'pytest')])"
    path = torch_of_our_own(tmp_path / "lib")
    done = launch("run", "--", target, "-c", code, PYTHONPATH=path)
    assert done.stdout == "[None, None]\n"


def test_children_of_a_shell_script_are_reached(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("python script.py\n")
    script(tmp_path, STARTED)
    assert launch("run", "--", "bash", "job.sh").stdout.endswith(" True\n")


@pytest.mark.parametrize("version", OTHER_PYTHONS)
def test_other_python_versions_are_supported(launch: Launch, tmp_path: Path, version: str) -> None:
    probe = f"import sys; assert '%d.%d' % sys.version_info[:2] == '{version}'"
    if launch("run", "--", f"python{version}", "-c", probe).returncode:
        pytest.skip(f"no Python {version} here")
    path = torch_of_our_own(tmp_path / "lib")
    code = "import torch, gradledger; print(gradledger.__version__)"
    done = launch("run", "--", f"python{version}", "-c", code, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr


def path_of_autostart() -> str:
    """The folder that the launcher puts on the path."""
    from gradledger import autostart  # noqa: PLC0415

    return str(autostart.PATH)
