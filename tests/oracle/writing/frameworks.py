"""The text of loops that a framework runs, or whose parts it gives.

Accelerate, Lightning's automatic optimisation and the Trainer with its own ``compute_loss`` divide
each loss by K themselves. On several ranks, each framework wraps the model in
DistributedDataParallel; the ranks' own streams are not split again.
"""

from __future__ import annotations

from textwrap import indent

from oracle.program import STEPS, Program
from oracle.writing import layouts
from oracle.writing.loss import forward_and_loss

_IMPORTS = {
    "accelerate": ["from accelerate import Accelerator"],
    "fabric": ["from lightning.fabric import Fabric"],
    "lightning": ["import lightning.pytorch as pl", "from torch.utils.data import DataLoader"],
    "trainer": [
        "import tempfile",
        "",
        "from torch.utils.data import DataLoader",
        "from transformers import Trainer, TrainingArguments",
    ],
    "trl": [
        "import tempfile",
        "",
        "from datasets import Dataset",
        "from tokenizers import Tokenizer, models",
        "from torch.utils.data import DataLoader",
        "from transformers import (",
        "    GenerationMixin, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast,",
        ")",
        "from transformers.modeling_outputs import BaseModelOutput",
        "from trl import SFTConfig, SFTTrainer",
    ],
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
        return _fabric(p, lines)
    if p.loop.startswith("lightning"):
        return _lightning(p, lines)
    return _trl(p) if p.loop == "trl_sft" else _trainer(p)


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


def causal_model() -> str:
    """``net`` and ``model`` as trl takes them: a body, and a head for the next token."""
    return """
class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 16)

    def forward(self, features, **kwargs):
        return BaseModelOutput(torch.tanh(self.linear(features)))


class Net(PreTrainedModel, GenerationMixin):
    config_class = PreTrainedConfig
    base_model_prefix = "body"

    def __init__(self):
        super().__init__(PreTrainedConfig())
        self.body = Body()
        self.head = nn.Linear(16, 7)

    def get_output_embeddings(self):
        return self.head

    def forward(self, features, **kwargs):
        return self.head(self.body(features).last_hidden_state)


net = Net()
model = net
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


def _fabric(p: Program, lines: list[str]) -> str:
    lines = [*lines, "fabric.backward(loss)"]
    context = layouts.sync_context(p, "fabric.no_backward_sync(model)")
    if context:
        lines = [f"with {context}:", *(f"    {line}" for line in lines)]
    return f"""
fabric = Fabric(accelerator="cpu", {_devices(p)})
fabric.launch()
model, optimizer = fabric.setup(net, optimizer)
for w, window in enumerate(windows):
    for m, batch in enumerate(window):
{_indented(lines, 8)}
    optimizer.step()
    optimizer.zero_grad()
"""


def _devices(p: Program) -> str:
    """Of Lightning: an argument, or two."""
    return "devices=1" if p.ranks == 1 else f'devices={p.ranks}, strategy="ddp"'


def _lightning(p: Program, lines: list[str]) -> str:
    manual = p.loop == "lightning_manual"
    if manual:
        lines = [*lines, "self.manual_backward(loss)"]
        context = layouts.sync_context(p, "self.trainer.model.no_sync()")
        if context:
            lines = [f"with {context}:", *(f"    {line}" for line in lines)]
        lines += [
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
    {_devices(p)},
    accumulate_grad_batches={"1" if manual else "K"},
    use_distributed_sampler=False,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
{_STREAM}trainer.fit(Task(), DataLoader(stream, batch_size=None, shuffle=False))
"""


def _trainer(p: Program) -> str:
    body = _indented(_lines_of_loss(p), 4).replace("counts[w]", "num_items_in_batch")
    own_loss, methods = "", ""
    if p.loop == "trainer_loss_func":
        own_loss = f"""
def loss_func(outputs, labels, num_items_in_batch=None):
{body}
    return loss


"""
    if p.loop == "trainer_compute_loss":
        methods = _compute_loss(p)
    if p.loop == "trainer_training_step":
        methods = f"""
    def training_step(self, model, inputs, num_items_in_batch=None):
        w, labels = self.state.global_step, inputs["labels"]
        outputs = model(inputs["features"])
{_indented(_lines_of_loss(p), 8)}
        self.accelerator.backward(loss)
        return loss.detach()
"""
    passed = ", compute_loss_func=loss_func" if own_loss else ""
    return f"""{own_loss}{_in_order("Trainer", methods)}

stream = [dict(features=batch[0], labels=batch[1]) for window in windows for batch in window]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
{_arguments(p)}
    )
    InOrder(
        model,
        arguments,
        train_dataset=stream,
        optimizers=(optimizer, None){passed},
    ).train()
"""


def _trl(p: Program) -> str:
    """SFTTrainer with its loss, a sum divided by the labels of the window, or with another."""
    methods = "" if p.normalisation == "window" else _compute_loss(p)
    return f"""
{_in_order("SFTTrainer", methods)}

stream = [
    dict(features=batch[0], labels=batch[1], attention_mask=torch.ones_like(batch[1]))
    for window in windows
    for batch in window
]
words = Tokenizer(models.WordLevel({{"<pad>": 0}}, unk_token="<pad>"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<pad>")
with tempfile.TemporaryDirectory() as folder:
    arguments = SFTConfig(
{_arguments(p)}
        bf16=False,
        gradient_checkpointing=False,
        dataset_kwargs=dict(skip_prepare_dataset=True),
    )
    trainer = InOrder(
        model,
        arguments,
        train_dataset=Dataset.from_dict(dict(input_ids=[[0, 0]], labels=[[0, 0]])),
        processing_class=tokenizer,
        optimizers=(optimizer, None),
    )
    trainer.train()
"""


def _lines_of_loss(p: Program) -> list[str]:
    return [line for line in forward_and_loss(p) if not line.startswith("outputs =")]


def _compute_loss(p: Program) -> str:
    body = _indented(_lines_of_loss(p), 8).replace("counts[w]", "num_items_in_batch")
    return f"""
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"]
        outputs = model(inputs["features"])
{body}
        return (loss, outputs) if return_outputs else loss
"""


def _in_order(trainer: str, methods: str) -> str:
    return f"""
class InOrder({trainer}):
    def get_train_dataloader(self):
        return DataLoader(stream, batch_size=None, shuffle=False)
{methods}"""


def _arguments(p: Program) -> str:
    return f"""
        output_dir=folder,
        gradient_accumulation_steps=K,
        max_steps={STEPS},
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        remove_unused_columns=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        average_tokens_across_devices={_counts_all(p)},""".removeprefix("\n")


def _counts_all(p: Program) -> bool:
    """Whether the Trainer counts over all ranks; for half of the means, by mistake."""
    by_mistake = p.normalisation not in ("window", "share") and p.seed % 2 == 0
    return p.ranks_count == "all" or by_mistake


def _indented(lines: list[str], spaces: int) -> str:
    return indent("\n".join(lines), " " * spaces)
