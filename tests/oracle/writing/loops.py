"""The text of a script's loop: micro-batches into windows, and the end of each window.

Its variables are ``batch``, number ``m`` of window ``w`` of ``windows``; and, where it counts them
through, ``i``.
"""

from __future__ import annotations

from textwrap import indent

from oracle.program import SKIPPED, Program
from oracle.writing import layouts
from oracle.writing.loss import forward_and_loss, loss_lines
from oracle.writing.model import names_of_optimizers

CLIPPED_TO = 0.5


def loop(p: Program) -> str:
    """The whole loop."""
    if p.pipeline:
        return layouts.pipeline(p, loss_lines(p), _step(p).splitlines())
    before = _compiled(p)
    if p.loop in ("windows", "function", "iterator"):
        return before + _of_windows(p)
    if p.loop == "closure":
        return before + _closure(p)
    return before + _of_stream(p)


def _of_windows(p: Program) -> str:
    """A window is in hand before it is trained."""
    body, step = _micro_batch(p), _step(p)
    inside = _adversary(p) + f"for m, batch in enumerate(window):\n{indent(body, '    ')}"
    inside += indent(step, "    ") if "stepped_every_micro_batch" in p.mistakes else step
    if p.loop == "windows":
        return f"for w, window in enumerate(windows):\n{indent(inside, '    ')}"
    if p.loop == "function":
        calls = "\n\nfor w, window in enumerate(windows):\n    train_window(w, window)\n"
        return f"\ndef train_window(w, window):\n{indent(inside, '    ')}{calls}"
    inside = f"window = list(itertools.islice(stream, K))\n{inside}"
    stream = "stream = iter([batch for window in windows for batch in window])\n"
    return f"{stream}for w in range(len(windows)):\n{indent(inside, '    ')}"


def _closure(p: Program) -> str:
    """The optimizer calls what makes the gradients."""
    body = indent(_micro_batch(p), "        ") + "        total += loss.detach()\n"
    after = "    scheduler.step()\n" if p.schedule == "cosine" else ""
    return f"""
for w, window in enumerate(windows):

    def closure():
        optimizer.zero_grad()
        total = 0.0
        for m, batch in enumerate(window):
{indent(body, "    ")}{indent(_before_update(p), "        ")}        return total

    optimizer.step(closure)
{after}"""


def _of_stream(p: Program) -> str:
    """Micro-batches are counted."""
    body, step = _micro_batch(p), _step(p)
    every = "stepped_every_micro_batch" in p.mistakes
    stream = "stream = [batch for window in windows for batch in window]\n"
    if p.loop == "counter":
        condition = "if m >= 0:" if every else "if m == K:"
        restart = "if m == K:\n    w, m = w + 1, 0\n"
        inside = f"{body}m += 1\n{condition}\n{indent(step, '    ')}{restart}"
        return f"{stream}w = m = 0\nfor batch in stream:\n{indent(inside, '    ')}"
    condition = {
        "modulo": "(i + 1) % K == 0",
        "epochs": "(i + 1) % K == 0",
        "tail": "(i + 1) % K == 0 or i + 1 == len(stream)",
        "off_by_one": "i % K == 0",
    }[p.loop]
    stepping = step if every else f"if {condition}:\n{indent(step, '    ')}"
    inside = f"w, m = divmod(i, K)\n{body}{stepping}"
    text = f"for i, batch in enumerate(stream):\n{indent(inside, '    ')}"
    if p.loop == "epochs":
        text = f"for epoch in range(2):\n{indent(text, '    ')}"
    return stream + text


def _compiled(p: Program) -> str:
    """The loss of a micro-batch, compiled with its model."""
    if p.compile != "loss":
        return ""
    lines = "\n".join(forward_and_loss(p, "whole"))
    return f"""
@torch.compile(backend="aot_eager", dynamic=True)
def loss_of(batch):
    features, labels = batch[:2]
{indent(lines, "    ")}
    return whole


"""


def _adversary(p: Program) -> str:
    """Train the critic on all micro-batches of a window."""
    if p.optimizers != "adversary":
        return ""
    backward, step = "{}.backward()", "critic_optimizer.step()\n"
    if p.scaled:
        scaler = "scaler" if p.scalers == "one" else "critic_scaler"
        backward = f"{scaler}.scale({{}}).backward()"
        step = f"{scaler}.step(critic_optimizer)\n{scaler}.update()\n"
    return f"""critic_optimizer.zero_grad()
rows = sum(len(batch[0]) for batch in window)
for batch in window:
    fake = critic(model(batch[0]).detach())
    real = critic(torch.randn(len(batch[0]), 7))
    fake_loss = F.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake), reduction="sum")
    real_loss = F.binary_cross_entropy_with_logits(real, torch.ones_like(real), reduction="sum")
    critic_loss = (fake_loss + real_loss) / (2 * rows)
    {backward.format("critic_loss")}
{step}"""


# ---------------------------------------------------------------------- a micro-batch


def _micro_batch(p: Program) -> str:
    """From a ``batch`` to its gradients."""
    lines = ["features, labels = batch[:2]", *layouts.before_micro_batch(p)]
    if "zeroed_every_micro_batch" in p.mistakes:
        lines += _zero(p)
    inside = [*forward_and_loss(p), *_backward(p)]
    context = layouts.sync_context(p)
    if context:
        lines += [f"with {context}:", *(f"    {line}" for line in inside)]
    else:
        lines += inside
    if p.skipped != "none":
        lines += [
            f"if w == {SKIPPED} and m == 0:",
            "    for parameter in model.parameters():",
            '        parameter.grad.fill_(float("inf"))  # as where half precision overflows',
        ]
    if p.accumulate_in == "buffers":
        lines += [
            "for parameter, gradients in sums.items():",
            "    gradients += parameter.grad",
            "    parameter.grad = None",
        ]
    if "clipped_every_micro_batch" in p.mistakes:
        lines += _clip(p)
    if "scheduled_every_micro_batch" in p.mistakes:
        lines.append("scheduler.step()")
    return "\n".join(lines) + "\n"


def _backward(p: Program) -> list[str]:
    if not p.scaled:
        return ["loss.backward()"]
    if "first_unscaled" in p.mistakes:
        return ["(loss if m == 0 else scaler.scale(loss)).backward()"]
    lines = ["scaler.scale(loss).backward()"]
    if "unscaled_inside" in p.mistakes:
        lines += ["if m == 0:", *(f"    {line}" for line in _unscale(p))]
    return lines


# ---------------------------------------------------------------------- the end of a window


def _step(p: Program) -> str:
    """From the gradients of a window to the next window."""
    lines = [_before_update(p).rstrip("\n")]
    if "zeroed_before_step" in p.mistakes:
        lines += _zero(p)
    if p.skipped == "guard":
        lines += ["if math.isfinite(norms[-1]):", *(f"    {line}" for line in _update(p))]
    else:
        lines += _update(p)
    if "stepped_twice" in p.mistakes:
        lines += [f"{name}.step()" for name in names_of_optimizers(p)]
    if p.schedule == "cosine" and "scheduled_every_micro_batch" not in p.mistakes:
        lines += ["scheduler.step()"]
    if "never_zeroed" not in p.mistakes:
        lines += _zero(p)
    return "\n".join(line for line in lines if line) + "\n"


def _before_update(p: Program) -> str:
    lines = []
    if p.accumulate_in == "buffers":
        lines += [
            "for parameter, gradients in sums.items():",
            "    parameter.grad = gradients.clone()",
            "    gradients.zero_()",
        ]
    lines += layouts.after_window(p)
    if p.normalisation == "after_backward":
        lines += ["for parameter in model.parameters():", "    parameter.grad /= counts[w]"]
    if p.clipping == "window" and "clipped_every_micro_batch" not in p.mistakes:
        early = {"clipped_before_unscale", "unscaled_inside"} & p.mistakes
        lines += _unscale(p) if p.scaled and not early else []
        lines += _clip(p)
    return "".join(f"{line}\n" for line in lines)


def _update(p: Program) -> list[str]:
    steps = [f"{name}.step()" for name in names_of_optimizers(p)]
    if not p.scaled or "scaler_bypassed" in p.mistakes:
        return steps  # `update` refuses to run where nothing was unscaled
    scaler = _stepping_scaler(p)
    steps = [f"{scaler}.step({name})" for name in names_of_optimizers(p)]
    if "updated_between" in p.mistakes:
        return [line for step in steps for line in (step, f"{scaler}.update()")]
    return [*steps, f"{scaler}.update()"]


def _unscale(p: Program) -> list[str]:
    return [f"{_stepping_scaler(p)}.unscale_({name})" for name in names_of_optimizers(p)]


def _stepping_scaler(p: Program) -> str:
    return "critic_scaler" if "stepped_by_other_scaler" in p.mistakes else "scaler"


def _clip(p: Program) -> list[str]:
    clip = f"torch.nn.utils.clip_grad_norm_(model.parameters(), {CLIPPED_TO})"
    whole = ".full_tensor()" if p.sharded else ""
    return [f"norms.append(float({clip}{whole}))"]


def _zero(p: Program) -> list[str]:
    names = names_of_optimizers(p)
    zeroed = names[:1] if "second_never_zeroed" in p.mistakes else names
    return [f"{name}.zero_grad()" for name in zeroed]
