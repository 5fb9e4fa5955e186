"""Fixes in the API of the framework that runs the loop; other loops get the rule's own snippet."""

from __future__ import annotations

from gradledger_monitor.model.step_facts import RunInfo

_UPGRADE = """\
# upgrade to transformers >= 4.46, which divides by the tokens of the whole window;
# with several ranks, also set:
TrainingArguments(..., average_tokens_across_devices=True)
# in your own compute_loss, divide by num_items_in_batch:
def compute_loss(self, model, inputs, num_items_in_batch=None, **kwargs):
    loss_sum = F.cross_entropy(logits, labels, reduction="sum")
    return loss_sum / num_items_in_batch"""

FRAMEWORK_FIXES: dict[str, dict[str, str]] = {
    "reduction.token_weights_unequal": {
        "transformers": _UPGRADE,
        "accelerate": """\
# fetch whole windows ahead, so that the end of the loader does not end a window early:
plugin = GradientAccumulationPlugin(num_steps=K, sync_with_dataloader=False)
accelerator = Accelerator(gradient_accumulation_plugin=plugin)
window = [next(batches) for _ in range(K)]
tokens = sum((b["labels"] != -100).sum() for b in window)
tokens = accelerator.gather(tokens).sum()
for batch in window:
    with accelerator.accumulate(model):
        loss = F.cross_entropy(logits, labels, reduction="sum") / tokens
        # undo Accelerate's division by K and DDP's division by the number of processes
        accelerator.backward(loss * K * accelerator.num_processes)""",
        "lightning": """\
# switch automatic optimization off: it divides by accumulate_grad_batches
self.automatic_optimization = False
# in training_step, for each micro-batch of a window:
self.manual_backward(F.cross_entropy(logits, labels, reduction="sum") / tokens_in_window)""",
    },
    "reduction.missing_division": {
        "transformers": """\
# divide by num_items_in_batch in the loss of the model, or let the Trainer divide by K:
trainer.model_accepts_loss_kwargs = False""",
        "accelerate": """\
with accelerator.accumulate(model):
    accelerator.backward(loss)                 # divides by K, unlike loss.backward()""",
    },
    "reduction.double_division": {
        "transformers": """\
# divide by num_items_in_batch only, not by self.args.gradient_accumulation_steps, too
return loss_sum / num_items_in_batch""",
        "accelerate": """\
accelerator.backward(loss)                     # divides by K: do not divide the loss""",
        "lightning": """\
return loss    # do not divide: Lightning divides by accumulate_grad_batches""",
    },
    "reduction.partial_window": {
        "transformers": """\
# divide by the micro-batches in the window (transformers >= 4.53)
loss = loss / self.current_gradient_accumulation_steps""",
    },
    "scaler.clip_before_unscale": {
        "accelerate": """\
if accelerator.sync_gradients:
    accelerator.clip_grad_norm_(model.parameters(), max_norm)    # unscales before it clips""",
        "lightning": """\
trainer = Trainer(gradient_clip_val=1.0)       # unscales before it clips""",
        "transformers": """\
TrainingArguments(..., max_grad_norm=1.0)      # the Trainer unscales before it clips""",
    },
    "loop.clip_every_microbatch": {
        "accelerate": """\
if accelerator.sync_gradients:
    accelerator.clip_grad_norm_(model.parameters(), max_norm)""",
    },
    "ddp.missing_no_sync": {
        "accelerate": """\
with accelerator.accumulate(model):            # all trained models: accumulate(a, b)
    accelerator.backward(compute_loss(model, batch))""",
        "lightning": """\
with fabric.no_backward_sync(model, enabled=not last):
    fabric.backward(compute_loss(model, batch))""",
    },
    "scheduler.step_every_microbatch": {
        "accelerate": """\
# prepare both; then call both on every micro-batch: Accelerate skips those inside a window
optimizer, scheduler = accelerator.prepare(optimizer, scheduler)
with accelerator.accumulate(model):
    ...""",
        "lightning": """\
return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}""",
    },
}


def fix(run: RunInfo, rule: str, plain: str) -> str:
    """The snippet for the framework of the run, or the plain one."""
    return FRAMEWORK_FIXES.get(rule, {}).get(framework(run), plain)


def framework(run: RunInfo) -> str:
    """The framework that runs the loop: as configured, else Accelerate, if it is imported alone.

    transformers imports accelerate, so both together do not show whose loop it is.
    """
    configured = run.config.get("framework")
    if isinstance(configured, str):
        return configured
    imported = "accelerate" in run.environment and "transformers" not in run.environment
    return "accelerate" if imported else "plain"
