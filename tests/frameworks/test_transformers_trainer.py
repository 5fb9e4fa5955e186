"""The Hugging Face Trainer, watched: the same bits, its tokens, its clipping, its evaluations."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gradledger
from frameworks.stored_run import checkpoints_of, config_of, evaluations_of
from frameworks.zero_code.train import IGNORED, VOCABULARY, collate, sequences
from helpers.service import running_service
from helpers.training import Recording, accused, recording

transformers = pytest.importorskip("transformers")

TESTS = Path(__file__).parents[1]
STEPS, MICRO_BATCHES = 20, 4


class Counting:
    """Collates, and counts the labels that the loss will count: all but each row's first."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def __call__(self, rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
        batch = collate(rows)
        self.tokens.append(int((batch["labels"][:, 1:] != IGNORED).sum()))
        return batch


def trainer_of(folder: Path, collator: Any = collate, **more: Any) -> Any:
    """A Trainer of a tiny Llama with dropout, four micro-batches a step, and clipping."""
    transformers.set_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=256,
            attention_dropout=0.1,
        )
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=MICRO_BATCHES,
        max_steps=STEPS,
        max_grad_norm=0.3,
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=STEPS // 2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    data = sequences(200)
    return transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=data[:180],
        eval_dataset=data[180:],
        data_collator=collator,
        **more,
    )


def trained(watched: AbstractContextManager[object], folder: Path, collator: Any) -> list[Tensor]:
    """Everything that twenty steps leave behind."""
    with watched:
        trainer = trainer_of(folder, collator)
        trainer.train()
    return [*trainer.model.parameters(), torch.get_rng_state()]


def test_twenty_steps_end_in_the_same_bits(tmp_path: Path) -> None:
    recorded = Recording()
    watched = trained(recording(recorded), tmp_path, collate)
    alone = trained(nullcontext(), tmp_path, collate)
    assert [len(record.micro_batches) for record in recorded.records()] == [MICRO_BATCHES] * STEPS
    for ours, theirs in zip(watched, alone, strict=True):
        assert torch.equal(ours, theirs)


def test_every_token_is_accounted_for(tmp_path: Path) -> None:
    recorded, counting = Recording(), Counting()
    with recording(recorded):
        trainer = trainer_of(tmp_path, counting)
        trainer.args.eval_strategy = "no"
        trainer.train()
    ours = [m.terms[0].tokens for record in recorded.records() for m in record.micro_batches]
    assert ours == counting.tokens[: len(ours)]
    assert len(ours) == STEPS * MICRO_BATCHES
    clips = [event for record in recorded.records() for event in record.events]
    assert [(c.limit, c.after) for c in clips if c.op == "clip_norm"] == [(0.3, 4)] * STEPS
    evaluation = recorded.evaluation()
    assert (accused(evaluation), evaluation.verdict) == ({}, "balanced")


def test_the_callback_records_evaluations_and_planned_steps(tmp_path: Path) -> None:
    from gradledger.integrations.transformers import GradledgerCallback  # noqa: PLC0415

    with running_service(tmp_path / "runs.db") as service:
        callback = GradledgerCallback(url=service.url, name="named")
        trainer = trainer_of(tmp_path, callbacks=[callback])
        trainer.train()
        callback.ledger.close()
        reported = {
            (log["step"], log["eval_loss"])
            for log in trainer.state.log_history
            if "eval_loss" in log
        }
        stored = evaluations_of(tmp_path / "runs.db")
    assert {(step, value) for name, step, value in stored if name == "eval_loss"} == reported
    assert {step for step, _ in reported} == {10, 20}
    assert {name for name, _, _ in stored} == {"eval_loss"}


SCRIPT = """
import sys
from pathlib import Path
from frameworks.test_transformers_trainer import trainer_of

trainer_of(Path(sys.argv[1])).train()
"""


def test_evaluations_of_an_unmodified_script_are_recorded(tmp_path: Path) -> None:
    database = tmp_path / "runs.db"
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with running_service(database) as service:
        started = [sys.executable, "-m", "gradledger.cli", "run", "--url", service.url, "--"]
        done = subprocess.run(
            [*started, sys.executable, script, tmp_path],
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert " failed and is " not in done.stderr
        assert {(name, step) for name, step, _ in evaluations_of(database)} == {
            ("eval_loss", 10),
            ("eval_loss", 20),
        }
        assert config_of(database) == {"framework": "transformers", "planned_steps": STEPS}


def test_checkpoints_are_recorded_with_their_steps_and_folders(tmp_path: Path) -> None:
    with running_service(tmp_path / "runs.db") as service:
        ledger = gradledger.watch(url=service.url)
        trainer = trainer_of(tmp_path / "out")
        trainer.args.save_strategy = "steps"
        trainer.args.save_steps = 8
        trainer.train()
        ledger.close()
        stored = checkpoints_of(tmp_path / "runs.db")
    saved = {folder: int(folder.name.partition("-")[2]) for folder in (tmp_path / "out").iterdir()}
    assert stored == sorted((step, str(folder)) for folder, step in saved.items())
    assert [step for step, _ in stored] == [8, 16, STEPS]


def test_nothing_is_left_in_transformers() -> None:
    from transformers import trainer  # noqa: PLC0415

    before = list(trainer.DEFAULT_CALLBACKS)
    ledger = gradledger.watch()
    assert len(trainer.DEFAULT_CALLBACKS) == len(before) + 1
    ledger.close()
    assert before == trainer.DEFAULT_CALLBACKS


def test_a_script_that_imports_the_trainer_before_torch_gets_the_callback() -> None:
    """``transformers.trainer`` imports torch, and so starts the hooks, before it has any name."""
    code = """
from transformers import Trainer
from transformers.trainer import DEFAULT_CALLBACKS
print(DEFAULT_CALLBACKS[-1].__class__.__name__)
"""
    command = [sys.executable, "-m", "gradledger.cli", "run", "--url", "http://127.0.0.1:9", "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["SessionCallback"], done.stderr
