"""Findings about the loops of frameworks point at the user's lines, never at the framework's."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradledger.capture.code import call_sites
from gradledger_monitor.ingest.schema import CodeLocation
from helpers.training import recording

ACCELERATE = """
import torch
from accelerate import Accelerator
from torch import nn
from transformers import get_constant_schedule

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = get_constant_schedule(optimizer)
model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
for _ in range(4):
    with accelerator.accumulate(model):
        logits = model(torch.randn(5, 4))
        loss = nn.functional.cross_entropy(logits, torch.randint(3, (5,)))  # at: loss
        accelerator.backward(loss)  # at: backward
        accelerator.clip_grad_norm_(model.parameters(), 1.0)  # at: clip_norm
        optimizer.step()  # at: step
        schedule.step()  # at: schedule
        optimizer.zero_grad()  # at: zero_grad
"""
LIGHTNING = """
import torch
from PACKAGE import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Linear(4, 3)

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.model(x), y)  # at: loss
        self.log("loss", loss)
        return {"loss": loss}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

batches = [(torch.randn(5, 4), torch.randint(3, (5,))) for _ in range(4)]
trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                  enable_progress_bar=False, enable_model_summary=False, barebones=False)
trainer.fit(Module(), DataLoader(batches, batch_size=None))  # at: backward step zero_grad
"""
CHANGED = LIGHTNING.replace('return {"loss": loss}', "return loss / 2  # at: loss")
MANUAL = (
    LIGHTNING.replace(
        """        self.log("loss", loss)
        return {"loss": loss}
""",
        """        self.manual_backward(loss)  # at: backward
        self.optimizers().step()  # at: step
        self.optimizers().zero_grad()  # at: zero_grad
""",
    )
    .replace(
        "super().__init__()\n", "super().__init__()\n        self.automatic_optimization = False\n"
    )
    .replace("# at: backward step zero_grad", "# at: zero_grad")
)
SOMETIMES_CHANGED = LIGHTNING.replace("  # at: loss", "").replace(
    '        return {"loss": loss}',
    "        if index > 9:\n            loss = loss * 2\n        return loss  # at: loss",
)
DEFINED_AGAIN = LIGHTNING.replace(  # as in a cell of a notebook that is run again
    "\nclass Module(LightningModule):",
    """
class Module(LightningModule):
    def training_step(self, batch, index):
        return nn.functional.mse_loss(*batch)

earlier = Module

class Module(LightningModule):""",
)
TRAINER = """
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x, labels):
        return self.linear(x)

class OwnLoss(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        outputs = model(**inputs)
        loss = nn.functional.cross_entropy(outputs, inputs["labels"])  # at: loss
        return (loss, {"logits": outputs}) if return_outputs else loss

rows = [{"x": torch.randn(4), "labels": torch.tensor(1)} for _ in range(8)]
arguments = TrainingArguments(
    "out", max_steps=4, per_device_train_batch_size=2, report_to=[], use_cpu=True
)
trainer = OwnLoss(model=Model(), args=arguments, train_dataset=rows)
trainer.train()  # at: backward step zero_grad clip_norm
"""
HEAD = """
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

class Head(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.linear = nn.Linear(4, 3)
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, x, labels=None, return_dict=True):
        logits = self.linear(x)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits, labels)  # at: loss
        if not return_dict:
            return (loss, logits)
        return SequenceClassifierOutput(loss=loss, logits=logits)

rows = [{"x": torch.randn(4), "labels": torch.tensor(1)} for _ in range(8)]
arguments = TrainingArguments(
    "out", max_steps=4, per_device_train_batch_size=2, report_to=[], use_cpu=True
)
trainer = Trainer(model=Head(PretrainedConfig()), args=arguments, train_dataset=rows)
trainer.train()  # at: backward step zero_grad clip_norm
"""
MODULE = (
    HEAD.replace("PreTrainedModel)", "nn.Module)")
    .replace("super().__init__(config)", "super().__init__()")
    .replace("        self.post_init()\n", "")
)
OWN_LOADER = TRAINER.replace(
    "class OwnLoss(Trainer):",
    """class OwnLoss(Trainer):
    def get_train_dataloader(self):
        loader = torch.utils.data.DataLoader(rows, batch_size=2)  # at: batches
        return loader
""",
).replace("# at: backward", "# at: batches backward")
COMPUTED_ELSEWHERE = (
    HEAD.replace("  # at: loss", "")
    .replace("train_dataset=rows)", "train_dataset=rows, compute_loss_func=of_outputs)")
    .replace(
        "rows = ",
        """def of_outputs(outputs, labels, num_items_in_batch=None, smoothing=0.0):
    return nn.functional.cross_entropy(outputs.logits, labels, None)  # at: loss

rows = """,
    )
)
COMPUTED_BY_A_PARTIAL = COMPUTED_ELSEWHERE.replace(
    "=of_outputs)", '=__import__("functools").partial(of_outputs, smoothing=0.1))'
)
COMPUTED_BY_AN_OBJECT = COMPUTED_ELSEWHERE.replace(
    "def of_outputs(", "class Smoothed:\n  def __call__(self, "
).replace("=of_outputs)", "=Smoothed())")
COMPUTED_BY_A_PACKAGE = HEAD.replace("  # at: loss", "").replace(
    '"out", ', '"out", label_smoothing_factor=0.1, '
)
# a function of no file, whose option has no name in the script
COMPUTED_WITHOUT_A_FILE = (
    HEAD.replace("  # at: loss", "")
    .replace("train_dataset=rows)", "train_dataset=rows, **{'compute_' + 'loss_func': of_no_file})")
    .replace(
        "rows = ",
        """of_no_file = eval(
    "lambda outputs, labels, num_items_in_batch: cross_entropy(outputs.logits, labels)",
    {"cross_entropy": nn.functional.cross_entropy},
)
rows = """,
    )
)
FABRIC = """\
import torch
import torch.nn.functional as F
from PACKAGE import Fabric

fabric = Fabric(accelerator="cpu", devices=1)
plain = torch.nn.Linear(4, 2)
model, optimizer = fabric.setup(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
for _ in range(4):
    loss = F.cross_entropy(model(torch.randn(2, 4)), torch.tensor([0, 1]))  # at: loss
    fabric.backward(loss)  # at: backward
    optimizer.step()  # at: step
    optimizer.zero_grad()  # at: zero_grad
"""
SCRIPTS = {
    "accelerate": ("accelerate", ACCELERATE),
    "fabric": ("lightning.fabric", FABRIC),
    "lightning": ("lightning.pytorch", LIGHTNING),
    "pytorch_lightning": ("pytorch_lightning", LIGHTNING),
    "a loss that the return changes": ("lightning.pytorch", CHANGED),
    "a loss that is sometimes changed": ("lightning.pytorch", SOMETIMES_CHANGED),
    "a module that is defined again": ("lightning.pytorch", DEFINED_AGAIN),
    "manual optimisation": ("lightning.pytorch", MANUAL),
    "transformers": ("transformers", TRAINER),
    "transformers, a model head": ("transformers", HEAD),
    "transformers, a module": ("transformers", MODULE),
    "transformers, a loader": ("transformers", OWN_LOADER),
    "transformers, a function": ("transformers", COMPUTED_ELSEWHERE),
    "transformers, a partial": ("transformers", COMPUTED_BY_A_PARTIAL),
    "transformers, an object": ("transformers", COMPUTED_BY_AN_OBJECT),
}


@pytest.mark.parametrize(("package", "script"), SCRIPTS.values(), ids=SCRIPTS)
def test_the_lines_are_those_of_the_user(
    package: str, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    call_sites._packages.clear()
    path = tmp_path / "train.py"
    path.write_text(script.replace("PACKAGE", package))
    with recording() as kept:
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
    located = [location for record in kept.records() for location in record.code]
    assert {location.file for location in located} == {"train.py"}
    expected = _expected(script)
    assert {role: _lines(located, role) for role in expected} == expected
    called = {FABRIC: call_sites.FABRIC, ACCELERATE: call_sites.ACCELERATOR}
    assert [*call_sites.in_use()] == [name for each, name in called.items() if each == script]
    losses = [location for location in located if location.role == "loss"]
    assert [location.via for location in losses] == [""] * len(expected["loss"])


@pytest.mark.parametrize("script", [COMPUTED_BY_A_PACKAGE, COMPUTED_WITHOUT_A_FILE])
def test_a_loss_that_the_trainer_computes_is_not_looked_for_in_the_model(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    call_sites._packages.clear()
    path = tmp_path / "train.py"
    path.write_text(script)
    with recording() as kept:
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
    located = [location for record in kept.records() for location in record.code]
    assert _lines(located, "backward") == _expected(script)["backward"]
    assert _lines(located, "loss") == set()


def _lines(located: list[CodeLocation], role: str) -> set[int]:
    return {location.line for location in located if location.role == role}


def _expected(script: str) -> dict[str, set[int]]:
    """Line numbers by role, from the comments of the script."""
    lines: dict[str, set[int]] = {}
    for number, line in enumerate(script.splitlines(), 1):
        for role in line.partition("# at: ")[2].split():
            lines.setdefault(role, set()).add(number)
    return lines
