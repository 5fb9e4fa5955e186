"""The git commit of a run, read from the files of git."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from gradledger import provenance
from gradledger.capture.code.work_tree import changed_files, dirty


def git(folder: Path, *words: str) -> str:
    """Run git."""
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    provenance.commit.cache_clear()
    dirty.cache_clear()
    yield
    provenance.commit.cache_clear()
    dirty.cache_clear()


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in a folder of a repository with one commit."""
    folder = tmp_path / "code"
    (folder / "src").mkdir(parents=True)
    script = folder / "src" / "train.py"
    script.write_text("")
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "x")
    monkeypatch.setattr(sys, "argv", [str(script)])
    return folder


@pytest.mark.parametrize("how", ["branch", "detached", "packed"])
def test_the_commit_is_that_of_git_rev_parse(code: Path, how: str) -> None:
    if how == "detached":
        git(code, "checkout", "--detach")
    elif how == "packed":
        git(code, "pack-refs", "--all")
    assert provenance.commit() == git(code, "rev-parse", "HEAD")


def test_a_work_tree_has_its_own(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = code.parent / "tree"
    git(code, "worktree", "add", str(tree))
    git(tree, "commit", "--allow-empty", "-m", "y")
    monkeypatch.setattr(sys, "argv", [str(tree / "src" / "train.py")])
    assert provenance.commit() == git(tree, "rev-parse", "HEAD") != git(code, "rev-parse", "HEAD")


def test_no_repository_and_a_new_one_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    monkeypatch.setattr(sys, "argv", [str(script)])
    assert provenance.commit() is None
    provenance.commit.cache_clear()
    git(tmp_path, "init")
    assert provenance.commit() is None


def test_the_device_is_the_cpu_unless_cuda_is_initialised() -> None:
    device = provenance.device(torch)
    assert device == ("cpu" if not torch.cuda.is_initialized() else torch.cuda.get_device_name())
    assert provenance.device(None) is None


# ---------------------------------------------------------------------- changed files


def changed_by_git(folder: Path) -> list[str]:
    """The same question to git itself."""
    lines = git(folder, "status", "--porcelain", "--untracked-files=no", "--no-renames")
    return sorted(line.strip().partition(" ")[2].strip() for line in lines.splitlines())


def edit(code: Path) -> None:
    (code / "src" / "train.py").write_text("x = 1\n")


def edit_to_the_same_size(code: Path) -> None:
    (code / "src" / "other.py").write_text("b")


def touch(code: Path) -> None:
    os.utime(code / "src" / "other.py", (1, 1))


def delete(code: Path) -> None:
    (code / "src" / "other.py").unlink()


def add(code: Path) -> None:
    (code / "new.py").write_text("")
    git(code, "add", ".")


def add_an_edit(code: Path) -> None:
    edit(code)
    git(code, "add", ".")


def add_and_reset(code: Path) -> None:
    add_an_edit(code)
    git(code, "reset", "--hard")


def leave_a_new_file(code: Path) -> None:
    (code / "notes.txt").write_text("")


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize(
    "change",
    [edit, edit_to_the_same_size, touch, delete, add, add_an_edit, add_and_reset, leave_a_new_file],
    ids=lambda change: change.__name__,
)
def test_changed_files_are_those_of_git_status(
    code: Path, change: Callable[[Path], None], version: int
) -> None:
    for name in ("src/other.py", "a/b/deep.py", "a/b.py"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text("a")
    git(code, "add", ".")
    git(code, "commit", "-m", "y")
    git(code, "update-index", "--index-version", str(version))
    assert changed_files(code, code / ".git") == []
    change(code)
    found = changed_files(code, code / ".git")
    assert found is not None
    assert sorted(found) == changed_by_git(code)


def test_the_state_of_a_run_names_its_changed_files(code: Path) -> None:
    assert dirty() == "no"
    dirty.cache_clear()
    edit(code)
    assert dirty() == "src/train.py"


def test_a_work_tree_and_a_packed_repository_are_read(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(code, "gc")
    assert dirty() == "no"
    dirty.cache_clear()
    tree = code.parent / "tree"
    git(code, "worktree", "add", str(tree))
    monkeypatch.setattr(sys, "argv", [str(tree / "src" / "train.py")])
    assert dirty() == "no"
    dirty.cache_clear()
    edit(tree)
    assert dirty() == "src/train.py"


def test_what_is_not_known_is_not_stated(code: Path) -> None:
    git(code, "gc")
    add(code)  # the tree of the commit is packed
    assert dirty() is None
    dirty.cache_clear()
    git(code, "config", "filter.lfs.clean", "cat")  # files are not stored as they are
    assert dirty() is None
    dirty.cache_clear()
    (code / ".git" / "index").write_bytes(b"DIRC")
    assert dirty() is None
