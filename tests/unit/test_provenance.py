"""The git commit of a run, read from the files of git."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gradledger import provenance


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
    yield
    provenance.commit.cache_clear()


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
