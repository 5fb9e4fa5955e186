"""Fixes in the API of the framework that runs the loop, and with the optimizer of the script.

Other loops get the rule's own snippet.

The rules on reductions choose theirs in ``reduction/fixes.py``, by more than the framework.
"""

from __future__ import annotations

import re

from gradledger_monitor.model.step_facts import RunInfo

# Classes of torch.optim. Others are named without their module, which is not known.
_OF_PYTORCH = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon"),
    *("NAdam", "RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam"),
)

# Accelerate divides in its backward, and skips step and zero_grad inside a window.
_ACCUMULATE = """\
for x, y in loader:                            # model, optimizer, loader: from prepare
    with accelerator.accumulate(model):
        accelerator.backward(loss_fn(model(x), y))
        optimizer.step()
        optimizer.zero_grad()"""

_MANUAL = """\
# In automatic optimization, pass accumulate_grad_batches=K to the Trainer, and do not override
# optimizer_step() to step on some batches only.
# in manual optimization, for each micro-batch:
self.manual_backward(loss / K)
if (batch_idx + 1) % K == 0:
    optimizer = self.optimizers()
    optimizer.step()
    optimizer.zero_grad()                      # once per window"""

_ZEROED_BY_TRAINER = (
    "# The Trainer zeroes the gradients after each step: no zero_grad in training_step or in a "
    "callback."
)

_TRAINER = f"""\
{_ZEROED_BY_TRAINER}
def training_step(self, model, inputs, num_items_in_batch=None):
    return super().training_step(model, inputs, num_items_in_batch)"""

# of LightningModules: of what synchronises too often, and at another micro-batch
SYNCED_AT_LAST = """\
# in manual optimization; last: of this window
with contextlib.nullcontext() if last else self.trainer.strategy.block_backward_sync():
    self.manual_backward(self.compute_loss(batch))"""

# of Fabric: its backward divides by nothing
_LOOP_OF_FABRIC = """\
for i, (x, y) in enumerate(loader):            # model, optimizer: from fabric.setup
    fabric.backward(loss_fn(model(x), y) / K)
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()                  # once per window"""
SYNCED_BY_FABRIC = """\
# the forward and the backward; last: of this window:
with fabric.no_backward_sync(model, enabled=not last):
    fabric.backward(compute_loss(model, batch))"""

FRAMEWORK_FIXES: dict[str, dict[str, str]] = {
    "loop.discarded_microbatches": {
        "accelerate": _ACCUMULATE,
        "transformers": _ZEROED_BY_TRAINER,
    },
    "loop.losses_added_again": {"accelerate": _ACCUMULATE, "fabric": _LOOP_OF_FABRIC},
    "loop.step_every_microbatch": {
        "accelerate": """\
# With gradient_accumulation_steps=K, backward divides by K: run each micro-batch in accumulate(),
# with every optimizer from prepare(). If nothing should be accumulated, set
# gradient_accumulation_steps=1.
# If the loop divides by K: step after each K-th backward, or leave out the division. If backward
# stands after the loop over the micro-batches, move it into that loop.
# accumulate() ends a window where the loader ends, too: if the batches of a window are drawn before
# it, GradientAccumulationPlugin(num_steps=K, sync_with_dataloader=False) avoids that. It counts a
# micro-batch each time it is entered: enter it once for each, with all models.""",
        "fabric": """\
fabric.backward(loss)                # divided for the accumulation, as before
if (i + 1) % K == 0:                 # step once per window, not once per micro-batch
    optimizer.step()
    optimizer.zero_grad()
# if backward stands after the loop over the micro-batches, move it into that loop;
# if nothing should be accumulated, leave out the division""",
    },
    "loop.zeroed_every_microbatch": {
        "accelerate": _ACCUMULATE,
        "fabric": _LOOP_OF_FABRIC,
        "lightning": _MANUAL,
        "transformers": _TRAINER,
    },
    "loop.zeroed_before_step": {"transformers": _ZEROED_BY_TRAINER},
    "scaler.clip_before_unscale": {
        "accelerate": """\
if accelerator.sync_gradients:
    accelerator.clip_grad_norm_(model.parameters(), max_norm)    # unscales before it clips""",
        "fabric": """\
fabric.clip_gradients(model, optimizer, max_norm=max_norm)     # unscales before it clips""",
        "lightning": """\
trainer = Trainer(..., gradient_clip_val=max_norm)  # unscales before it clips""",
        "transformers": """\
# Let the Trainer clip, with max_grad_norm of TrainingArguments: it unscales before it clips.""",
    },
    "loop.clip_every_microbatch": {
        "accelerate": """\
if accelerator.sync_gradients:
    accelerator.clip_grad_norm_(model.parameters(), max_norm)""",
        "fabric": """\
if (i + 1) % K == 0:
    fabric.clip_gradients(model, optimizer, max_norm=max_norm)
    optimizer.step()
    optimizer.zero_grad()""",
        "lightning": """\
# Let the Trainer clip, with gradient_clip_val: it clips once per window, before the step. In manual
# optimization, call self.clip_gradients() before optimizer.step(), and not in each micro-batch.""",
        "transformers": """\
# Let the Trainer clip, with max_grad_norm of TrainingArguments: it clips once per window. A
# callback that clips does so in on_pre_optimizer_step(), and not in on_substep_end().""",
    },
    "ddp.missing_no_sync": {
        "accelerate": """\
# the model that prepare() returned, not a module around it; of several: accumulate(a, b)
with accelerator.accumulate(model):
    accelerator.backward(compute_loss(model, batch))""",
        "fabric": SYNCED_BY_FABRIC,
        "lightning": SYNCED_AT_LAST,
    },
    "ddp.wrong_microbatch_synced": {
        "accelerate": """\
# instead of accumulate(), which counts micro-batches by itself; last: of this window
with contextlib.nullcontext() if last else accelerator.no_sync(model):
    accelerator.backward(compute_loss(model, batch))""",
        "fabric": SYNCED_BY_FABRIC,
        "lightning": SYNCED_AT_LAST,
    },
    "ddp.duplicate_data": {
        "accelerate": """\
loader = accelerator.prepare(loader)           # each process gets other batches""",
        "fabric": """\
loader = fabric.setup_dataloaders(loader)      # each process gets other batches""",
        "lightning": """\
# A Trainer gives each process other batches by itself, unless use_distributed_sampler=False.""",
        "transformers": """\
# A Trainer gives each process other batches by itself. A get_train_dataloader of your own returns
# self.accelerator.prepare(loader) for that.""",
    },
    "scheduler.step_every_microbatch": {
        "accelerate": """\
# prepare the optimizer; a prepared scheduler steps once for each process:
optimizer = accelerator.prepare(optimizer)
# on every micro-batch, Accelerate skips the steps inside a window:
optimizer.step()
if accelerator.sync_gradients:
    scheduler.step()                           # planned in optimizer steps""",
        "lightning": """\
return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}""",
        "transformers": """\
# The Trainer steps the schedule once per optimizer step: no scheduler.step() in a callback.""",
    },
}


# In place of that of loop.step_every_microbatch.
PREPARED = """\
# an optimizer that is not prepared does not know where a window ends:
optimizer = accelerator.prepare(optimizer)"""

# In place of that of scheduler.step_every_microbatch, on several processes.
PREPARED_SCHEDULE = """\
# a prepared scheduler makes one step for each process: plan it in these, or do not prepare it
steps = optimizer_steps * accelerator.num_processes
scheduler = get_scheduler(name, optimizer, num_training_steps=steps)
scheduler = accelerator.prepare(scheduler)"""

# Of ranks that each compute the same training: no call that one of them makes is wrong.
ONE_TRAINING = """\
# To train one model on all data, share out the data (DistributedSampler) and wrap the model in
# DistributedDataParallel. Accelerate does both in prepare(), if it is configured for several
# processes. To train one model once, start one process."""

# Of a backward that may only measure: no loop has to change.
MEASURE = """\
# To measure a gradient, torch.autograd.grad(loss, parameters) leaves param.grad as it is. To train
# on this data, too, zero the gradients before the first backward of a window only."""

# Code of nothing but these calls is the same in loops of these frameworks, which have their own
# backward and clip.
_SAME = {
    "accelerate": {"optimizer.step", "optimizer.zero_grad"},
    "fabric": {"optimizer.step", "optimizer.zero_grad", "scheduler.step"},
    "lightning": {"optimizer.zero_grad"},  # in manual optimization
}

# Families of rules whose snippets contain calls of a training loop. Those on reductions have their
# own for each framework.
_OF_LOOPS = ("clip.", "ddp.", "loop.", "scaler.", "scheduler.")
_TITLES = {
    "accelerate": "Accelerate",
    "fabric": "Fabric",
    "lightning": "Lightning",
    "transformers": "a Trainer",
}


def fix(run: RunInfo, rule: str, plain: str, of_page: str = "") -> str:
    """The snippet for the framework of the run, or the plain one; no code that is not proved there.

    ``of_page`` is the one snippet that the page of the rule shows.
    ``tests/museum/fixes`` and ``tests/frameworks/fixes`` run the fixes that are shown.
    """
    if plain in (PREPARED, PREPARED_SCHEDULE, ONE_TRAINING, MEASURE):
        return plain
    name = framework(run)
    if _is_same(plain, name):
        return plain
    proved = FRAMEWORK_FIXES.get(rule, {}).get(name)
    if proved is not None:
        of_trl = "trl" in run.environment and name == "transformers" and has_code(proved)
        return _words(proved, "a Trainer of transformers", "trl") if of_trl else proved
    if name not in _TITLES or not rule.startswith(_OF_LOOPS):
        return plain
    if not has_code(plain):
        return plain
    words = _words(plain, "loops of plain PyTorch", _TITLES[name])
    return f"{words}\n# The page of the rule has it." if plain == of_page else words


def _is_same(text: str, framework: str) -> bool:
    """Whether its code is the same in this framework. Of these, Fabric alone counts no windows."""
    code = "\n".join(line.partition("#")[0] for line in text.splitlines())
    calls = set(re.findall(r"[\w.]+(?=\()", code))
    counts = framework != "fabric" and "% K" in code
    return bool(calls) and calls <= _SAME.get(framework, set()) and not counts


def _words(code: str, proved: str, shown: str) -> str:
    """Where the code is proved, and its comments but for those that introduce lines of it."""
    comments = [line for line in code.splitlines() if line.startswith("#")]
    stated = [line for line in comments if not line.endswith(":")]
    return "\n".join(
        [*stated, f"# The code of this fix is tested in {proved}, and not with {shown}."]
    )


def has_code(text: str) -> bool:
    """Whether a fix is more than a comment on what must hold."""
    return any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines())


def framework(run: RunInfo) -> str:
    """The framework that runs the loop: as configured, else Fabric or Accelerate, if any call is
    made through it.

    Else Accelerate, if it is imported without transformers, which imports it.
    """
    configured = run.config.get("framework")
    if isinstance(configured, str):
        return configured
    if "lightning_fabric" in run.environment:
        return "fabric"
    if "Accelerator" in run.environment:
        return "accelerate"
    imported = "accelerate" in run.environment and "transformers" not in run.environment
    return "accelerate" if imported else "plain"


def with_optimizer(plain: str, name: str) -> str:
    """The snippet with the optimizer of the script, of the class ``name``, in place of AdamW."""
    if not name[:1].isupper():  # not recorded
        return plain
    full = f"torch.optim.{name}" if name in _OF_PYTORCH else name
    return plain.replace("torch.optim.AdamW", full)
