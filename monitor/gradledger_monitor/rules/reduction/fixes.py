"""Fixes of the reduction rules: chosen by the loop, the ranks and the kind of loss.

Code is shown only for the combinations that `tests/museum/fixes` and `tests/frameworks/fixes` run
and compare with the true gradient. All others get a comment that states what must hold. A comment
that ends with a colon names the place of the lines below it.
"""

from __future__ import annotations

from typing import Literal

from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.step_facts import RunInfo, StepFacts
from gradledger_monitor.rules.balance.after_backward import (
    factor_between,
    factor_of_loop,
    is_scaled_by_loop,
)
from gradledger_monitor.rules.balance.evidence import Near
from gradledger_monitor.rules.framework_fixes import framework
from gradledger_monitor.rules.objective_names import element_name

# Who calls backward, and which divisions follow: of DDP and FSDP (ranks), of a framework (K), of a
# pipeline's schedule (K).
Loop = Literal[
    "plain", "ranks", "pipeline", "accelerate", "fabric", "transformers", "lightning", "unproved"
]

PLAIN_LOOPS: tuple[Loop, ...] = ("plain", "ranks")  # of PyTorch alone

TOKEN_MEAN: dict[Loop, str] = {
    "plain": """\
# before the window:
tokens = sum((labels != -100).sum() for _, labels in window)    # causal LM: labels[:, 1:]
# for each micro-batch:
loss = F.cross_entropy(logits, labels, reduction="sum") / tokens
loss.backward()""",
    "ranks": """\
# before the window:
tokens = sum((labels != -100).sum() for _, labels in window)    # causal LM: labels[:, 1:]
dist.all_reduce(tokens)
# for each micro-batch:
loss = F.cross_entropy(logits, labels, reduction="sum") / tokens
(loss * dist.get_world_size()).backward()                     # DDP and FSDP average over ranks""",
    "pipeline": """\
# where the schedule is created:
def token_mean(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / tokens

schedule = Schedule1F1B(stage, K, loss_fn=token_mean, scale_grads=False)
# before schedule.step:
tokens = (labels != -100).sum()                                 # causal LM: labels[:, 1:]""",
    "accelerate": """\
# where the Accelerator is created, so that the end of the loader does not end a window early:
plugin = GradientAccumulationPlugin(num_steps=K, sync_with_dataloader=False)
accelerator = Accelerator(gradient_accumulation_plugin=plugin)
# before the window:
window = [next(batches) for _ in range(K)]
tokens = sum((labels != -100).sum() for _, labels in window)    # causal LM: labels[:, 1:]
tokens = accelerator.gather(tokens).sum()
# for each micro-batch:
loss = F.cross_entropy(logits, labels, reduction="sum") / tokens
# backward divides by K; the gradients are averaged over the processes
accelerator.backward(loss * accelerator.gradient_accumulation_steps * accelerator.num_processes)""",
    "fabric": """\
# before the window:
tokens = sum((labels != -100).sum() for _, labels in window)    # causal LM: labels[:, 1:]
tokens = fabric.all_reduce(tokens, reduce_op="sum")
# for each micro-batch:
loss = F.cross_entropy(logits, labels, reduction="sum") / tokens
fabric.backward(loss * fabric.world_size)                       # DDP averages over ranks""",
    "transformers": """\
# instead of a loss in the model, in compute_loss or in training_step (transformers 5.23):
def token_mean(outputs, labels, num_items_in_batch):
    logits, labels = outputs.logits[:, :-1], labels[:, 1:]      # causal LM; others: no shift
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return loss / num_items_in_batch                            # labels of the whole window

trainer = Trainer(..., compute_loss_func=token_mean)
# With average_tokens_across_devices=True, the default, it counts the labels of all processes. If it
# is False, and the loss is already divided by num_items_in_batch, True alone is the fix.""",
    "lightning": """\
# in the LightningModule, where the loader returns whole windows:
def __init__(self):
    super().__init__()
    self.automatic_optimization = False

def training_step(self, window, index):
    optimizer = self.optimizers()
    tokens = sum((labels != -100).sum() for _, labels in window)
    tokens = self.all_gather(tokens).sum()
    for i, (inputs, labels) in enumerate(window, start=1):
        loss = F.cross_entropy(self(inputs).flatten(0, 1), labels.flatten(), reduction="sum")
        with optimizer.toggle_model(sync_grad=i == len(window)):
            self.manual_backward(loss / tokens * self.trainer.world_size)   # DDP averages
    optimizer.step()
    optimizer.zero_grad()
# for the Trainer:
loader = DataLoader(windows, batch_size=None)                   # windows: lists of micro-batches
accumulate = {}                                                 # no accumulate_grad_batches""",
}

CLASS_WEIGHTED_MEAN: dict[Loop, str] = {
    "plain": """\
# before the window:
counted = [labels[labels != -100] for _, labels in window]      # causal LM: labels[:, 1:]
total = sum(class_weights[labels].sum() for labels in counted)
# for each micro-batch:
loss = F.cross_entropy(logits, labels, weight=class_weights, reduction="sum") / total
loss.backward()""",
    "ranks": """\
# before the window:
counted = [labels[labels != -100] for _, labels in window]      # causal LM: labels[:, 1:]
total = sum(class_weights[labels].sum() for labels in counted)
dist.all_reduce(total)
# for each micro-batch:
loss = F.cross_entropy(logits, labels, weight=class_weights, reduction="sum") / total
(loss * dist.get_world_size()).backward()                     # DDP and FSDP average over ranks""",
}

# Of one loss that is added to others.
TERM_MEAN: dict[Loop, str] = {
    "plain": """\
# before the window:
tokens = sum((labels != -100).sum() for _, labels in window)    # those of this loss
# where this loss is computed, before it is added to the others:
loss = F.cross_entropy(logits, labels, reduction="sum") / tokens""",
}

MICRO_BATCH_MEAN: dict[Loop, str] = {
    "plain": """\
# for each micro-batch:
(loss / K).backward()                      # K micro-batches for each step""",
    "ranks": """\
# for each micro-batch:
(loss / K).backward()                      # K micro-batches for each step""",
    "pipeline": """\
# where the schedule is created:
schedule = Schedule1F1B(stage, K, loss_fn=loss_fn, scale_grads=True)   # divides gradients by K""",
    "accelerate": """\
# where the Accelerator is created:
accelerator = Accelerator(gradient_accumulation_steps=K)
# for each micro-batch:
with accelerator.accumulate(model):
    loss = compute_loss(model, batch)
    accelerator.backward(loss)             # divides by K, unlike loss.backward()
    optimizer.step()                       # a prepared optimizer steps at the end of a window
    optimizer.zero_grad()""",
    "fabric": """\
# for each micro-batch:
fabric.backward(loss / K)                  # K micro-batches for each step""",
    "transformers": """\
# let the Trainer divide the loss of the model, or of compute_loss, by K:
trainer.model_accepts_loss_kwargs = False
# in a compute_loss_func, with average_tokens_across_devices, the default:
loss = loss / trainer.current_gradient_accumulation_steps / trainer.accelerator.num_processes
# in a training_step of your own, before backward:
loss = loss / self.current_gradient_accumulation_steps""",
    "lightning": """\
# in manual optimization, for each micro-batch:
self.manual_backward(loss / K)             # K micro-batches for each step""",
}

ONE_DIVISION: dict[Loop, str] = {
    "plain": """\
# for each micro-batch:
loss.backward()                            # not (loss / K).backward(): it is divided already""",
    "ranks": """\
# for each micro-batch:
loss.backward()                            # not (loss / K).backward(): it is divided already""",
    "pipeline": """\
# where the schedule is created, for a loss that is divided already:
schedule = Schedule1F1B(stage, K, loss_fn=loss_fn, scale_grads=False)""",
    "accelerate": """\
# backward divides by the accumulation steps. If the loss is divided in the call, by K:
accelerator.backward(loss)                 # not accelerator.backward(loss / K)
# if it is divided before, by what it counts in the window:
accelerator.backward(loss * accelerator.gradient_accumulation_steps)""",
    "fabric": """\
# for each micro-batch:
fabric.backward(loss)                      # not loss / K: it is divided already""",
    "lightning": """\
# in automatic optimization:
return loss * self.trainer.accumulate_grad_batches    # divided by Lightning, and already here
# in manual optimization:
self.manual_backward(loss)                            # not loss / K: it is divided already""",
}

ONE_WORLD_SIZE_MORE: dict[Loop, str] = {
    "ranks": """\
# for each micro-batch:
(loss * dist.get_world_size()).backward()  # DDP and FSDP average over ranks""",
    "accelerate": """\
# for each micro-batch:
accelerator.backward(loss * accelerator.num_processes)    # DDP averages over the processes""",
    "fabric": """\
# for each micro-batch:
fabric.backward(loss * fabric.world_size)  # DDP averages over ranks""",
    "transformers": """\
# in a compute_loss of your own, whose result the Trainer does not multiply:
loss = loss * self.accelerator.num_processes              # DDP averages over the processes""",
}

ONE_WORLD_SIZE_LESS: dict[Loop, str] = {
    "ranks": """\
# for each micro-batch:
loss.backward()                            # not loss * world_size""",
}

# Where there are as many ranks as micro-batches, and either may be the factor.
ONE_OF_BOTH_MORE: dict[Loop, str] = {
    "ranks": """\
# if the loss is divided by what all ranks count, for each micro-batch:
(loss * dist.get_world_size()).backward()  # DDP and FSDP average over ranks
# if it is divided by what this rank counts in the window, and by K:
loss.backward()                            # not (loss / K).backward(): it is divided already""",
}

ONE_OF_BOTH_LESS: dict[Loop, str] = {
    "ranks": """\
# if the loss is multiplied by the number of ranks, for each micro-batch:
loss.backward()                            # not loss * world_size
# if each micro-batch is divided by what it counts alone:
(loss / K).backward()                      # K micro-batches for each step""",
}

# Of a mean that is not divided by K, if a constant in front of it equals the number of ranks.
UNDIVIDED_CONSTANT: dict[Loop, str] = {
    "ranks": """\
# if the constant in front of the loss is the number of ranks, for each micro-batch:
(loss / K).backward()                      # not loss * world_size: the ranks are averaged
# if it is an intended weight:
(loss * weight / K).backward()             # K micro-batches for each step""",
}

# The same of a mean whose micro-batches have equal counts.
TERM_DIVIDED: dict[Loop, str] = {
    "plain": """\
# of each loss that is not divided yet: where it is computed, before it is added to the others
loss = loss / K""",
}

WINDOW_LENGTH: dict[Loop, str] = {
    "plain": """\
# for each micro-batch:
(loss / len(window)).backward()            # the micro-batches in this window, not always K""",
    "ranks": """\
# for each micro-batch:
(loss / len(window)).backward()            # the micro-batches in this window, not always K""",
    "accelerate": """\
# with accumulate(), where the Accelerator is created; a window goes on in the next epoch:
plugin = GradientAccumulationPlugin(num_steps=K, sync_with_dataloader=False)
accelerator = Accelerator(gradient_accumulation_plugin=plugin)
# without accumulate(), for each micro-batch; what backward divides by is undone:
accelerator.backward(loss * accelerator.gradient_accumulation_steps / len(window))""",
    "fabric": """\
# for each micro-batch:
fabric.backward(loss / len(window))        # the micro-batches in this window, not always K""",
    "lightning": """\
# In manual optimization, divide by the micro-batches in this window, not always by K.
# Automatic optimization always divides by K: leave out the rest of each epoch. ``batches`` is how
# many one rank has, at least K: len(loader), over the ranks if Lightning adds their sampler.
# where the Trainer is created:
trainer = Trainer(..., limit_train_batches=batches // K * K)""",
}

OF_CAUSAL_MODELS = "    # causal LM: labels[:, 1:]"

SUM_OVER_WINDOW = """\
# Divide the sum of the loss by what it counts (elements, labels, sequences) in the whole window,
# over all ranks. Then undo what divides once more: K in accelerator.backward() and in automatic
# optimization of Lightning, the number of ranks in DDP and FSDP."""

SUM_OF_ONE_RANK = """\
# Divide the sum of the loss by what it counts (elements, labels, sequences) in the whole window. In
# a window of one micro-batch with a mask, this is (losses * mask).sum() / mask.sum()."""

SUM_OVER_CLASS_WEIGHTS = """\
# Divide the sum of the weighted loss by the sum of the targets' class weights in the whole window,
# over all ranks. Then undo what divides once more: K in accelerator.backward() and in automatic
# optimization of Lightning, the number of ranks in DDP and FSDP."""

SUM_OVER_WEIGHTS = """\
# Divide the sum of the weighted loss by the sum of its weights in the whole window, over all ranks.
# Then undo what divides once more: K in accelerator.backward() and in automatic optimization of
# Lightning, the number of ranks in DDP and FSDP."""

DIVIDED_ONCE = """\
# Divide the mean of a micro-batch by K once, and a sum that is divided by what the whole window
# counts not at all. accelerator.backward(), the engine of DeepSpeed, automatic optimization of
# Lightning, and a Trainer without compute_loss_func whose model_accepts_loss_kwargs is False divide
# by K themselves."""

NO_SHORT_BATCH = """\
# either leave out the short last batch of each epoch, with DataLoader(..., drop_last=True), or:"""

NOTE_TRAINER = """
# In a Trainer, num_items_in_batch is the number of labels in the window, unless it is None. By
# default, the Trainer multiplies the result of a compute_loss_func by the number of processes."""

NOTE_OF_LOOP = """
# Then divide the gradients nowhere else: leave out a division by a count or by K after a backward,
# or in hooks of the parameters."""

NOTE_ACCELERATE = """
# with accelerator.backward(loss): loss * accelerator.gradient_accumulation_steps, it divides"""


def token_mean(facts: StepFacts, objective: Objective | None) -> str:
    """The sum over the tokens of a window, divided by their number: for a cross entropy.

    If it weighs its classes, or is divided by its own weights, divided by the sum of the weights.
    """
    fix = _token_mean(facts, objective)
    if loop(facts) == "plain" and "accelerate" not in facts.run.environment:
        fix = fix.replace(SUM_OVER_WINDOW, SUM_OF_ONE_RANK)
    return fix + (NOTE_OF_LOOP if _divides_later(facts) else "")


def _token_mean(facts: StepFacts, objective: Objective | None) -> str:
    if objective is not None and objective.reading.unit == "loss_weights":
        return SUM_OVER_WEIGHTS
    several = len(facts.objectives) > 1
    if _has_class_weights(objective):
        fixes: dict[Loop, str] = {} if several else CLASS_WEIGHTED_MEAN
        code = of_loop(fixes, facts, SUM_OVER_CLASS_WEIGHTS)
        return _ignoring(code, objective, SUM_OVER_CLASS_WEIGHTS)
    return fix_of_tokens(of_loop(TERM_MEAN if several else TOKEN_MEAN, facts), objective)


def fix_of_tokens(code: str, objective: Objective | None) -> str:
    """Code that sums a cross entropy; of other losses, the comment on what must hold."""
    if _has_class_weights(objective):
        return SUM_OVER_CLASS_WEIGHTS
    if objective is None or objective.weighted_inside:
        return SUM_OVER_WINDOW
    if not objective.kind.startswith("NllLoss") or _is_changed(objective):
        return SUM_OVER_WINDOW
    code = _ignoring(code, objective, SUM_OVER_WINDOW)
    return _in_samples(code) if element_name(objective) == "sample" else code


def _ignoring(code: str, objective: Objective | None, otherwise: str) -> str:
    """The code with the class that the loss ignores; a Trainer counts labels other than -100."""
    ignored = set() if objective is None else {t.loss_term.ignored for t in objective.terms}
    if ignored <= {None}:
        return code
    if len(ignored) > 1 or "!= -100" not in code:
        return otherwise
    (label,) = ignored
    code = code.replace("!= -100", f"!= {label}")
    return code.replace('reduction="sum"', f'ignore_index={label}, reduction="sum"')


def _in_samples(code: str) -> str:
    """The code of a classifier: each target is a sample, and nothing is shifted."""
    return code.replace(OF_CAUSAL_MODELS, "").replace("tokens", "samples")


def _is_changed(objective: Objective) -> bool:
    """Whether the loop computes with the loss of each token: a focal loss, or a mask by hand."""
    terms = [(t.tokens, t.loss_term) for t in objective.terms]
    return any(t.of is not None or (t.valid or tokens) > tokens for tokens, t in terms)


def _has_class_weights(objective: Objective | None) -> bool:
    """Whether it is a cross entropy of PyTorch that was called with a weight for each class."""
    return objective is not None and any(t.loss_term.class_weight for t in objective.terms)


def without_short_batch(facts: StepFacts, objective: Objective | None) -> str:
    """Either no short batch, or equal weights."""
    return f"{NO_SHORT_BATCH}\n{token_mean(facts, objective)}"


def factor_fix(
    fixes: dict[Loop, str],
    facts: StepFacts,
    objective: Objective | None,
    otherwise: str = SUM_OVER_WINDOW,
) -> str:
    """Another factor for a loss whose tokens have equal weights; it would not make them equal."""
    if objective is None or not objective.reading.is_even(facts.tolerance):
        return token_mean(facts, objective)
    return of_loop(fixes, facts, otherwise)


def division_of_one(facts: StepFacts, objective: Objective, otherwise: str) -> str:
    """The division of one loss beside others that are divided."""
    even = objective.reading.is_even(facts.tolerance)
    return of_loop(TERM_DIVIDED, facts, otherwise) if even else otherwise


def of_loop(fixes: dict[Loop, str], facts: StepFacts, otherwise: str = SUM_OVER_WINDOW) -> str:
    """The code for the loop of a run; ``otherwise`` where none is proved."""
    used = loop(facts)
    if used not in fixes:
        counts = otherwise == SUM_OVER_WINDOW and framework(facts.run) == "transformers"
        return otherwise + (NOTE_TRAINER if counts else "")
    note = NOTE_OF_LOOP if fixes is WINDOW_LENGTH and _divides_later(facts) else ""
    imported = used in PLAIN_LOOPS and "accelerate" in facts.run.environment
    return fixes[used] + note + (NOTE_ACCELERATE if imported else "")


def of_plain_loop(code: str, facts: StepFacts, words: str) -> str:
    """The code in a loop of PyTorch alone, whose fixes are proved by programs; else the words."""
    return code if loop(facts) in PLAIN_LOOPS else words


def _divides_later(facts: StepFacts) -> bool:
    """Whether the loop divides gradients after a backward, more than to unscale and to clip.

    The schedule of a pipeline and DeepSpeed do it for the loop.
    """
    if facts.record.pipeline or "deepspeed" in facts.run.environment:
        return False
    factors = [number(clip.factor) or 1.0 for clip in facts.own_calls("clip_norm")]
    near = Near(1.0, facts.tolerance)
    unscaled = [factor * (facts.scale or 1.0) for factor in factors]
    before_clip = any(not near(a) and not near(b) for a, b in zip(factors, unscaled, strict=True))
    after = factor_of_loop(facts) if is_scaled_by_loop(facts) else 1.0
    return before_clip or min(after, factor_between(facts) or 1.0) < 1.0


def loop(facts: StepFacts) -> Loop:
    """The loop of a run. A script that imports transformers imports accelerate, too."""
    name, run = framework(facts.run), facts.run
    if name != "plain":  # trainers of trl have their own losses
        on_ranks = facts.record.wrapper == "ddp" and facts.averaged
        proved = (run.world_size == 1 or on_ranks) and "trl" not in run.environment
        return name if proved else "unproved"  # type: ignore[return-value]
    if _divides_itself(run):
        return "unproved"
    if facts.record.pipeline:  # proved where its schedule runs once in a window
        several = any(m.rescaled is not None for m in facts.record.micro_batches)
        return "unproved" if several or run.world_size > 1 else "pipeline"
    if run.world_size == 1:
        return "plain"
    # a loop that combines gradients itself may sum them
    wrapped = facts.record.wrapper in ("ddp", "fsdp2") and facts.averaged
    own_divisor = facts.record.wrapper == "fsdp2" and facts.record.divisors
    return "ranks" if wrapped and not own_divisor else "unproved"


def _divides_itself(run: RunInfo) -> bool:
    """Engines whose backward divides by K, and of which a loop does not show that it uses them."""
    return "deepspeed" in run.environment or "lightning" in run.environment
