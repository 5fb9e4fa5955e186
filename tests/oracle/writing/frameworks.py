"""The text of loops that a framework runs, or whose parts it gives.

Accelerate, Lightning's automatic optimisation and the Trainer with its own ``compute_loss`` divide
each loss by K themselves.
"""

from __future__ import annotations

from textwrap import indent

from oracle.program import STEPS, Program
from oracle.writing.loss import forward_and_loss

_IMPORTS = {
    "accelerate": ["from accelerate import Accelerator"],
    "fabric": ["from lightning.fabric import Fabric"],
    "lightning": ["import lightning.pytorch as pl", "from torch.utils.data import DataLoader"],
    "trainer": ["import tempfile", "", "from transformers import Trainer, TrainingArguments"],
}
_STREAM = "stream = [batch for window in windows for batch in window]\n"


def imports(p: Program) -> list[str]:
    """Lines."""
    return _IMPORTS.get(p.loop.partition("_")[0], [])


def loop(p: Program) -> str:
    """The whole loop, or what the framework calls."""
    lines = ["features, labels = batch[:2]", *forward_and_loss(p)]
    if p.loop == "accelerate":
        return _accelerate(lines)
    if p.loop == "fabric":
        return _fabric(lines)
    if p.loop.startswith("lightning"):
        return _lightning(p, lines)
    return _trainer(p)


def head_forward(p: Program) -> str:
    """The ``forward`` of a model that computes its loss itself, as models of transformers do."""
    lines = [line for line in forward_and_loss(p) if not line.startswith("outputs =")]
    text = indent("\n".join(lines), "        ").replace("counts[w]", "num_items_in_batch")
    return f"""
    def forward(self, features, labels=None, num_items_in_batch=None, **kwargs):
        outputs = self.head(torch.tanh(self.body(features)))
        if labels is None:
            return outputs
{text}
        return {{"loss": loss, "logits": outputs}}
"""


def _accelerate(lines: list[str]) -> str:
    inside = [*lines, "accelerator.backward(loss)", "optimizer.step()", "optimizer.zero_grad()"]
    return f"""
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=K)
model, optimizer = accelerator.prepare(net, optimizer)
{_STREAM}for i, batch in enumerate(stream):
    w, m = divmod(i, K)
    with accelerator.accumulate(model):
{_indented(inside, 8)}
"""


def _fabric(lines: list[str]) -> str:
    return f"""
fabric = Fabric(accelerator="cpu", devices=1)
model, optimizer = fabric.setup(net, optimizer)
for w, window in enumerate(windows):
    for m, batch in enumerate(window):
        with fabric.no_backward_sync(model, enabled=m < len(window) - 1):
{_indented([*lines, "fabric.backward(loss)"], 12)}
    optimizer.step()
    optimizer.zero_grad()
"""


def _lightning(p: Program, lines: list[str]) -> str:
    manual = p.loop == "lightning_manual"
    if manual:
        lines = [
            *lines,
            "self.manual_backward(loss)",
            "if (i + 1) % K == 0:",
            "    self.optimizers().step()",
            "    self.optimizers().zero_grad()",
        ]
    else:
        lines = [*lines, "return loss"]
    return f"""
class Task(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net
        self.automatic_optimization = {not manual}

    def configure_optimizers(self):
        return optimizer

    def training_step(self, batch, i):
        w, m = divmod(i, K)
{_indented(lines, 8)}


trainer = pl.Trainer(
    max_epochs=1,
    accelerator="cpu",
    devices=1,
    accumulate_grad_batches={"1" if manual else "K"},
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
{_STREAM}trainer.fit(Task(), DataLoader(stream, batch_size=None, shuffle=False))
"""


def _trainer(p: Program) -> str:
    lines = [line for line in forward_and_loss(p) if not line.startswith("outputs =")]
    body = _indented(lines, 4).replace("counts[w]", "num_items_in_batch")
    own_loss, methods = "", ""
    if p.loop == "trainer_loss_func":
        own_loss = f"""
def loss_func(outputs, labels, num_items_in_batch=None):
{body}
    return loss


"""
    if p.loop == "trainer_compute_loss":
        methods = f"""
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"]
        outputs = model(inputs["features"])
{indent(body, "    ")}
        return (loss, outputs) if return_outputs else loss
"""
    passed = ", compute_loss_func=loss_func" if own_loss else ""
    return f"""{own_loss}
class InOrder(Trainer):
    def _get_train_sampler(self, *arguments):
        return torch.utils.data.SequentialSampler(self.train_dataset)
{methods}

def only_row(rows):
    return {{"features": rows[0][0], "labels": rows[0][1]}}


{_STREAM}with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=K,
        max_steps={STEPS},
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        remove_unused_columns=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    InOrder(
        model,
        arguments,
        only_row,
        stream,
        optimizers=(optimizer, None){passed},
    ).train()
"""


def _indented(lines: list[str], spaces: int) -> str:
    return indent("\n".join(lines), " " * spaces)
