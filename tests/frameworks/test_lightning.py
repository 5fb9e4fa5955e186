"""Lightning, watched: automatic and manual optimisation, and Fabric; under both of its names."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from frameworks.stored_run import checkpoints_of, config_of, evaluations_of
from helpers.loops import EQUAL
from helpers.service import running_service
from helpers.training import (
    Batches,
    Recording,
    accused,
    cross_entropy,
    recording,
    tiny_model,
    tokens,
    windows,
)

fabric = pytest.importorskip("lightning.fabric")

STEPS, MICRO_BATCHES = 20, 4
UNEQUAL = "reduction.token_weights_unequal"
PACKAGES = ["lightning.pytorch", "pytorch_lightning"]

Train = Callable[[AbstractContextManager[object], list[Batches]], list[Tensor]]


def batches_of(data: list[Batches]) -> Any:
    """A loader of ready-made batches."""
    return DataLoader(list(chain.from_iterable(data)), batch_size=None)  # type: ignore[arg-type]


def module_of(package: str, manual: bool = False) -> Any:
    """A LightningModule with dropout, that logs its losses."""
    lightning: Any = importlib.import_module(package)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Sequential(tiny_model(), nn.Dropout(0.3))
            self.automatic_optimization = not manual

        def training_step(self, batch: Any, index: int) -> Any:
            loss = cross_entropy(self.model, batch)
            self.log("train_loss", loss)
            if not manual:
                return loss
            optimizer = self.optimizers()
            self.manual_backward(loss / MICRO_BATCHES)
            if (index + 1) % MICRO_BATCHES == 0:
                self.clip_gradients(optimizer, 0.3, "norm")
                optimizer.step()
                optimizer.zero_grad()
            return None

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", cross_entropy(self.model, batch))

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    return Module()


def trainer_of(package: str, **options: Any) -> Any:
    """A Trainer without anything that draws or writes."""
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    return importlib.import_module(package).Trainer(
        **{"max_epochs": 1, "accelerator": "cpu", "enable_checkpointing": False, **quiet, **options}
    )


def automatic(watched: AbstractContextManager[object], data: list[Batches]) -> list[Tensor]:
    """Backward and clipping run inside ``optimizer.step(closure)``."""
    module = module_of("lightning.pytorch")
    with watched:
        options = {"accumulate_grad_batches": MICRO_BATCHES, "gradient_clip_val": 0.3}
        trainer_of("lightning.pytorch", **options).fit(module, batches_of(data))
    return [*module.parameters(), torch.get_rng_state()]


def manual(watched: AbstractContextManager[object], data: list[Batches]) -> list[Tensor]:
    """The module calls backward and step itself."""
    module = module_of("lightning.pytorch", manual=True)
    with watched:
        trainer_of("lightning.pytorch").fit(module, batches_of(data))
    return [*module.parameters(), torch.get_rng_state()]


def with_fabric(watched: AbstractContextManager[object], data: list[Batches]) -> list[Tensor]:
    """A loop of one's own, with Fabric's wrappers."""
    model: Any = nn.Sequential(tiny_model(), nn.Dropout(0.3))
    with watched:
        runner = fabric.Fabric(accelerator="cpu", devices=1)
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
        model, optimizer = runner.setup(model, optimizer)
        for window in data:
            for index, batch in enumerate(window):
                with runner.no_backward_sync(model, enabled=index < MICRO_BATCHES - 1):
                    runner.backward(cross_entropy(model, batch) / MICRO_BATCHES)
            runner.clip_gradients(model, optimizer, max_norm=0.3)
            optimizer.step()
            optimizer.zero_grad()
    return [*model.parameters(), torch.get_rng_state()]


ways = pytest.mark.parametrize("train", [automatic, manual, with_fabric])


@ways
def test_twenty_steps_end_in_the_same_bits(train: Train) -> None:
    data = windows(STEPS)
    for ours, theirs in zip(train(recording(), data), train(nullcontext(), data), strict=True):
        assert torch.equal(ours, theirs)


@ways
def test_windows_tokens_and_clipping_are_seen(train: Train) -> None:
    recorded, data = Recording(), windows(STEPS)
    train(recording(recorded), data)
    records = recorded.records()
    assert [len(record.micro_batches) for record in records] == [MICRO_BATCHES] * STEPS
    ours = [m.terms[0].tokens for record in records for m in record.micro_batches]
    assert ours == [tokens(batch) for batch in chain.from_iterable(data)]
    clips = [event for record in records for event in record.events if event.op == "clip_norm"]
    assert [(clip.limit, clip.after) for clip in clips] == [(0.3, MICRO_BATCHES)] * STEPS


@ways
def test_the_mean_of_micro_batch_means_is_named(train: Train) -> None:
    recorded = Recording()
    train(recording(recorded), windows(STEPS))
    evaluation = recorded.evaluation()
    assert (accused(evaluation), evaluation.verdict) == ({UNEQUAL: 1}, "broken")


@ways
def test_equal_lengths_are_balanced(train: Train) -> None:
    recorded = Recording()
    train(recording(recorded), windows(STEPS, lengths=EQUAL))
    evaluation = recorded.evaluation()
    assert (accused(evaluation), evaluation.verdict) == ({}, "balanced")


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("named", [True, False], ids=["named", "found"])
def test_validations_and_planned_steps_are_recorded(
    package: str, named: bool, tmp_path: Path
) -> None:
    import gradledger  # noqa: PLC0415
    from gradledger.integrations.lightning import (  # noqa: PLC0415
        callback_class,
        watching_callback_class,
    )

    lightning = importlib.import_module(package)
    database = tmp_path / "runs.db"
    with running_service(database) as service:
        if named:
            callback = watching_callback_class(package)(url=service.url)
            assert isinstance(callback, lightning.Callback)
            ledger, callbacks = callback.ledger, [callback]
        else:
            ledger, callbacks = gradledger.watch(url=service.url), []
        trainer = trainer_of(package, val_check_interval=8, callbacks=callbacks)
        assert sum(isinstance(c, callback_class(package)) for c in trainer.callbacks) == 1
        data = windows(4)
        trainer.fit(module_of(package), batches_of(data), batches_of(data[:1]))
        ledger.close()
        stored = evaluations_of(database)
        assert config_of(database) == {"framework": "lightning", "planned_steps": 16}
    assert [(name, step) for name, step, _ in stored] == [("val_loss", 8), ("val_loss", 16)]
    assert stored[-1][2] == pytest.approx(float(trainer.callback_metrics["val_loss"]))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_trainer_is_pickled_for_processes_that_are_spawned(package: str) -> None:
    import gradledger  # noqa: PLC0415
    from gradledger.integrations.lightning import watching_callback_class  # noqa: PLC0415

    for callbacks in [[], [watching_callback_class(package)()]]:
        with gradledger.watch():
            trainer = trainer_of(package, callbacks=callbacks)
            copied = pickle.loads(pickle.dumps(trainer))
        assert [type(c) for c in copied.callbacks] == [type(c) for c in trainer.callbacks]


@pytest.mark.parametrize("package", PACKAGES)
def test_checkpoints_are_recorded_with_their_steps(package: str, tmp_path: Path) -> None:
    import gradledger  # noqa: PLC0415

    checkpointing = importlib.import_module(f"{package}.callbacks").ModelCheckpoint(
        dirpath=tmp_path / "out", every_n_train_steps=6, save_top_k=-1
    )
    database = tmp_path / "runs.db"
    with running_service(database) as service:
        ledger = gradledger.watch(url=service.url)
        trainer = trainer_of(package, callbacks=[checkpointing], enable_checkpointing=True)
        trainer.fit(module_of(package), batches_of(windows(4)))
        ledger.close()
        stored = checkpoints_of(database)
    assert len(list((tmp_path / "out").glob("*.ckpt"))) == len(stored)
    assert [step for step, _ in stored] == [6, 12]


def test_nothing_is_left_in_lightning(tmp_path: Path) -> None:
    import gradledger  # noqa: PLC0415

    before = len(trainer_of("lightning.pytorch").callbacks)
    gradledger.watch().close()
    assert len(trainer_of("lightning.pytorch").callbacks) == before
