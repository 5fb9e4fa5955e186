"""Detects, from the command line alone, commands in which the hooks cannot start.

``python -I`` and ``-E`` ignore ``PYTHONPATH``, ``-S`` imports no ``sitecustomize``, and some tools
start their command with another environment or on another machine. Such a program runs without
the hooks and nothing is recorded, so ``gradledger run`` reports it before the training starts.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from gradledger.autostart import PATH

WORKAROUND = "call gradledger.watch() in the script"
_PYTHON = re.compile(r"(python|pypy)[0-9.]*t?d?(\.exe)?", re.IGNORECASE)
_WITH_VALUE = "cmWX"  # switches of Python with a value: the rest of the word, or the next word
_OTHER_ENVIRONMENT = ("sudo", "doas", "su", "ssh", "docker", "podman", "kubectl", "runuser")


def reason(command: list[str]) -> str | None:
    """Why the command is not recorded, with a workaround; None if nothing indicates that."""
    if not command:
        return None
    program = Path(command[0]).name
    if program == "env":
        return _of_env(command[1:])
    if program in _OTHER_ENVIRONMENT:
        return (
            f"{program} does not pass PYTHONPATH on, so its command is not recorded. "
            f"Run `{program} ... gradledger run -- ...` instead, or {WORKAROUND}"
        )
    if program == "srun" and any(word.startswith("--export=NONE") for word in command):
        return f"--export=NONE drops PYTHONPATH: nothing is recorded. Remove it, or {WORKAROUND}"
    words = command[1:] if _PYTHON.fullmatch(program) else _shebang(command[0])
    switch = next((letter for letter in _switches(words) if letter in "IES"), None)
    if switch is None:
        return None
    why = "imports no sitecustomize" if switch == "S" else "ignores PYTHONPATH"
    return (
        f"python -{switch} {why}, so this process is not recorded (Python processes that it starts "
        f"without -{switch} are). Remove -{switch}, or {WORKAROUND}"
    )


def _of_env(words: list[str]) -> str | None:
    """The reason if ``env`` clears the environment, else the reason for the command it starts."""
    cleared, words = False, list(words)
    while words and (words[0].startswith("-") or "=" in words[0]):
        word = words.pop(0)
        if word in ("-", "-i", "--ignore-environment"):
            cleared = True
        elif word.startswith("PYTHONPATH="):
            cleared = str(PATH) not in word
        elif word in ("-u", "--unset") and words:
            cleared |= words.pop(0) == "PYTHONPATH"
        elif word in ("-C", "--chdir") and words:
            words.pop(0)
    if cleared:
        return f"env drops PYTHONPATH, so the command is not recorded. Keep it, or {WORKAROUND}"
    return reason(words)


def _switches(words: list[str]) -> Iterator[str]:
    """The single-letter switches of Python, up to the script, module or code."""
    words = list(words)
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word.startswith("--"):
            if word == "--check-hash-based-pycs" and words:
                words.pop(0)
            continue
        for index, letter in enumerate(word[1:], start=1):
            if letter in _WITH_VALUE:
                if letter in "cm":
                    return
                if index == len(word) - 1 and words:
                    words.pop(0)
                break
            yield letter


def _shebang(program: str) -> list[str]:
    """The arguments of Python in the first line of an executable script."""
    path = shutil.which(program)
    try:
        with open(path or program, "rb") as file:
            line = file.readline(256)
    except (OSError, ValueError):
        return []
    words = line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []
    while words and Path(words[0]).name in ("env", "-S"):
        words.pop(0)
    return words[1:] if words and _PYTHON.fullmatch(Path(words[0]).name) else []
