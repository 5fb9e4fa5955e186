"""Fixes in the idiom of the framework whose loop it is; elsewhere the rule's own snippet holds."""

from __future__ import annotations

from gradledger_monitor.model.step_facts import RunInfo

_UPGRADE = """\
# transformers >= 4.46 divides by the tokens of the whole window; with several ranks also:
TrainingArguments(..., average_tokens_across_devices=True)
# a compute_loss of your own must use what it is given:
def compute_loss(self, model, inputs, num_items_in_batch=None, **kwargs):
    loss_sum = F.cross_entropy(logits, labels, reduction="sum")
    return loss_sum / num_items_in_batch"""

IDIOMS: dict[str, dict[str, str]] = {
    "reduction.token_weights_unequal": {
        "transformers": _UPGRADE,
        "accelerate": """\
# a window is fetched ahead, so the end of the loader must not end it:
plugin = GradientAccumulationPlugin(num_steps=K, sync_with_dataloader=False)
accelerator = Accelerator(gradient_accumulation_plugin=plugin)
window = [next(batches) for _ in range(K)]
tokens = sum((b["labels"] != -100).sum() for b in window)
tokens = accelerator.gather(tokens).sum()
for batch in window:
    with accelerator.accumulate(model):
        loss = F.cross_entropy(logits, labels, reduction="sum") / tokens
        # accelerate divides by K, and DDP by the number of processes: take both back
        accelerator.backward(loss * K * accelerator.num_processes)""",
        "lightning": """\
# Lightning divides by accumulate_grad_batches: turn automatic optimisation off, and
self.automatic_optimization = False
# in training_step, over the micro-batches of one window:
self.manual_backward(F.cross_entropy(logits, labels, reduction="sum") / tokens_in_window)""",
    },
    "reduction.missing_division": {
        "transformers": """\
# the model takes loss keyword arguments and ignores num_items_in_batch: use it, or say so
trainer.model_accepts_loss_kwargs = False      # then the Trainer divides by K""",
        "accelerate": """\
with accelerator.accumulate(model):
    accelerator.backward(loss)                 # divides by K; loss.backward() does not""",
    },
    "reduction.double_division": {
        "transformers": """\
# compute_loss already divides by num_items_in_batch: do not divide by
# self.args.gradient_accumulation_steps as well
return loss_sum / num_items_in_batch""",
        "accelerate": """\
accelerator.backward(loss)                     # divides by K already: do not divide loss""",
        "lightning": """\
return loss                                    # Lightning divides by accumulate_grad_batches""",
    },
    "reduction.partial_window": {
        "transformers": """\
# divide by what is really in the window (transformers >= 4.53)
loss = loss / self.current_gradient_accumulation_steps""",
    },
    "scaler.clip_before_unscale": {
        "accelerate": """\
if accelerator.sync_gradients:
    accelerator.clip_grad_norm_(model.parameters(), max_norm)    # unscales first""",
        "lightning": """\
trainer = Trainer(gradient_clip_val=1.0)       # unscales first""",
        "transformers": """\
TrainingArguments(..., max_grad_norm=1.0)      # the Trainer unscales and clips""",
    },
    "loop.clip_every_microbatch": {
        "accelerate": """\
if accelerator.sync_gradients:
    accelerator.clip_grad_norm_(model.parameters(), max_norm)""",
    },
    "ddp.missing_no_sync": {
        "accelerate": """\
with accelerator.accumulate(model):            # every trained model: accumulate(one, other)
    accelerator.backward(compute_loss(model, batch))""",
        "lightning": """\
with fabric.no_backward_sync(model, enabled=not last):
    fabric.backward(compute_loss(model, batch))""",
    },
    "scheduler.step_every_microbatch": {
        "accelerate": """\
optimizer, scheduler = accelerator.prepare(optimizer, scheduler)   # then both may be called
with accelerator.accumulate(model):                                # on every micro-batch
    ...""",
        "lightning": """\
return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}""",
    },
}


def fix(run: RunInfo, rule: str, plain: str) -> str:
    """The snippet in the run's own idiom, or the plain one."""
    return IDIOMS.get(rule, {}).get(framework(run), plain)


def framework(run: RunInfo) -> str:
    """Whose loop it is, as far as that was told; accelerate alone is imported to be used."""
    told = run.config.get("framework")
    if isinstance(told, str):
        return told
    alone = "accelerate" in run.environment and "transformers" not in run.environment
    return "accelerate" if alone else "plain"
