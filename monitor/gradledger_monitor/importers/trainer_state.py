"""``trainer_state.json``, which the Hugging Face Trainer writes into every checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradledger_monitor.importers.metric_log import Point, TrainingLog, UnreadableLog, number

FILE = "trainer_state.json"
_SUMMARY = "train_runtime"  # only in the entry about the whole training
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_CONFIG_KEYS = ("max_steps", "num_train_epochs", "train_batch_size", "logging_steps", "save_steps")


def read(path: Path) -> Iterator[TrainingLog]:
    """The training; of a folder of checkpoints, as the last one has it."""
    file = path if path.is_file() else _newest(path)
    try:
        state = json.loads(file.read_text())
        history = state["log_history"]
        points = [_point(entry) for entry in history if _SUMMARY not in entry]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableLog(f"{file}: not a trainer_state.json of the Trainer") from error
    output = file.parent.parent if _CHECKPOINT.fullmatch(file.parent.name) else file.parent
    config = {"framework": "transformers"}
    config |= {key: state[key] for key in _CONFIG_KEYS if state.get(key)}
    if state.get("max_steps"):
        config["planned_steps"] = state["max_steps"]
    yield TrainingLog(
        "the Hugging Face Trainer", str(output.resolve()), output.name, points, config,
        checkpoints=_checkpoints(output),
    )  # fmt: skip


def _newest(folder: Path) -> Path:
    files = [*folder.glob(FILE), *folder.glob(f"checkpoint-*/{FILE}")]
    if not files:
        raise UnreadableLog(f"{folder}: no {FILE} in it")
    return max(files, key=lambda file: _steps(file.parent) or 2**53)


def _steps(folder: Path) -> int | None:
    matched = _CHECKPOINT.fullmatch(folder.name)
    return int(matched[1]) if matched else None


def _checkpoints(output: Path) -> dict[int, str]:
    folders = ((_steps(folder), folder.name) for folder in output.glob("checkpoint-*"))
    return {step: name for step, name in folders if step is not None}


def _point(entry: dict[str, Any]) -> Point:
    values = {key: value for key, cell in entry.items() if (value := number(cell)) is not None}
    return Point(values.pop("step"), {k: v for k, v in values.items() if k != "epoch"})
