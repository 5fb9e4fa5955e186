"""Which lines of a script a fix changes, and where the change is not certain."""

from __future__ import annotations

import ast

from gradledger.records import CodeRole
from gradledger_monitor.evaluation.finding_code import AUTOGRAD_GRAD, with_code
from gradledger_monitor.model.code.locations import CodeLocation
from gradledger_monitor.model.findings import Finding, Severity, is_generic
from gradledger_monitor.rules.clip import after_step
from gradledger_monitor.rules.loop import (
    double_step,
    grads_not_zeroed,
    step_every_microbatch,
    zeroed_before_step,
    zeroed_every_microbatch,
)
from gradledger_monitor.rules.reduction.fixes import MICRO_BATCH_MEAN, ONE_DIVISION
from gradledger_monitor.rules.scaler import clip_before_unscale
from gradledger_monitor.rules.scheduler import step_every_microbatch as scheduled_every_microbatch

RULES = {
    after_step.FIX: "clip.after_step",
    after_step.FIX_VALUES: "clip.after_step",
    MICRO_BATCH_MEAN["plain"]: "reduction.missing_division",
    MICRO_BATCH_MEAN["accelerate"]: "reduction.missing_division",
    MICRO_BATCH_MEAN["fabric"]: "reduction.missing_division",
    ONE_DIVISION["fabric"]: "reduction.double_division",
    ONE_DIVISION["plain"]: "reduction.double_division",
    grads_not_zeroed.FIX: "loop.grads_not_zeroed",
    double_step.FIX: "loop.double_step",
    double_step.FIX_SCALED: "loop.double_step",
    zeroed_before_step.FIX: "loop.zeroed_before_step",
    MICRO_BATCH_MEAN["lightning"]: "reduction.missing_division",
    ONE_DIVISION["accelerate"]: "reduction.double_division",
    zeroed_every_microbatch.FIX: "loop.zeroed_every_microbatch",
    step_every_microbatch.FIX: "loop.step_every_microbatch",
    scheduled_every_microbatch.FIX: "scheduler.step_every_microbatch",
    clip_before_unscale.FIX: "scaler.clip_before_unscale",
    clip_before_unscale.of_values(clip_before_unscale.FIX): "scaler.clip_before_unscale",
}
ROLES: dict[str, tuple[CodeRole, ...]] = {
    "scaler.step(": ("scaler_step", "step"),
    "scheduler.step(": ("schedule",),
    "manual_backward(": ("backward",),
    ".unscale_(": ("unscale",),
    ".step(": ("step",),
    ".backward(": ("backward",),
    "clip_grad_norm_(": ("clip_norm",),
    "clip_grad_value_(": ("clip_value",),
    ".zero_grad(": ("zero_grad",),
}


def located(script: str, via: str = "") -> list[CodeLocation]:
    """The calls in the lines of a script, with the lines around them that the hooks record."""
    lines = f"{script}\n".split("\n")
    calls = []
    for number, line in enumerate(lines, 1):
        pattern = next((p for p in ROLES if p in line), None)
        first = max(1, number - 3)
        for role in ROLES[pattern] if pattern else ():
            source = tuple(lines[first - 1 : number + 2])
            calls.append(
                CodeLocation(role, "a.py", number, number, via=via, first=first, source=source)
            )
    return calls


def fix_of(
    fix: str,
    script: str,
    first_step: int = 1,
    others: int = 0,
    via: str = "",
    severity: Severity = "error",
) -> str:
    """The fix of a finding in a script."""
    numbers = {"micro_batches": 4, "intended_micro_batches": 4}
    finding = Finding(RULES[fix], 0, severity, first_step, 9, 5, "t", "s", fix, numbers)
    calls = located(script, via)
    (result,) = with_code([finding], dict.fromkeys(range(1 + others), calls))
    return result.fix


def changed(fix: str, script: str, via: str = "") -> str:
    """The script with the change of the fix."""
    diff = fix_of(fix, script, via=via)
    assert not is_generic(diff)
    _, _, position, *hunk = diff.splitlines()
    first = int(position.split()[1].strip("-").partition(",")[0])
    lines = script.splitlines()
    before = [line[1:] for line in hunk if not line.startswith("+")]
    assert lines[first - 1 : first - 1 + len(before)] == before
    lines[first - 1 : first - 1 + len(before)] = [each[1:] for each in hunk if each[0] != "-"]
    ast.parse("\n".join(lines))
    return "\n".join(lines)


CLIP = """\
for x in xs:
    scaler.scale(loss).backward()
    if last:
        norm = clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(self.optimizer)  # now
        scaler.update()"""
ACCELERATE = """\
with self.accelerator.accumulate(model):
    loss = model(x)

    loss.backward()  # now
    optimizer.step()"""


def test_the_loss_is_divided_in_the_line() -> None:
    plain, one = MICRO_BATCH_MEAN["plain"], ONE_DIVISION["plain"]
    assert changed(plain, "scaler.scale(loss).backward()") == "scaler.scale(loss / 4).backward()"
    assert changed(one, "scaler.scale(loss / K).backward()") == "scaler.scale(loss).backward()"
    assert changed(one, "(loss / K).backward()  # a") == "loss.backward()  # a"


def test_accelerate_divides_below_its_accumulate() -> None:
    fix = MICRO_BATCH_MEAN["accelerate"]
    after = changed(fix, ACCELERATE)
    assert after == ACCELERATE.replace("loss.backward()", "self.accelerator.backward(loss)")
    of_call = ACCELERATE.replace("loss.backward", "f(x).backward")
    assert "self.accelerator.backward(f(x))  # now" in changed(fix, of_call)
    for uncertain in (
        ACCELERATE.replace("with self.accelerator.accumulate(model)", "if last"),
        ACCELERATE.replace("    loss = model(x)", "    loss = a\n    loss = b\n    loss = c"),
        ACCELERATE.replace("\n    loss = ", "\nif last:\n    loss = "),
    ):
        assert is_generic(fix_of(fix, uncertain))


def test_gradients_are_zeroed_after_the_only_step() -> None:
    fix = grads_not_zeroed.FIX
    assert changed(fix, "a = 1\nif last:\n    self.opt.step()\nb = 1").splitlines()[3] == (
        "    self.opt.zero_grad()"
    )
    by_scaler = changed(fix, "if last:\n    scaler.step(opt)\n    scaler.update()")
    assert by_scaler.splitlines()[2] == "    opt.zero_grad()"
    assert not is_generic(fix_of(fix, "optimizer.step()", via="accelerate"))
    assert is_generic(fix_of(fix, "optimizer.step()", via="lightning"))
    for uncertain in (
        "optimizer.step(closure)",
        "if last: optimizer.step()",
        "optimizers[0].step()",
        "loss = optimizer.step()",
        "f(\n    optimizer.step()\n)",
        "f(\n    a,\n    optimizer.step()\n)",
        "a = \\\n    optimizer.step()",
        "optimizer.step(); a = 1",
        "optimizer.step()\nif tail:\n    optimizer.step()",
    ):
        assert is_generic(fix_of(fix, uncertain)), uncertain
    assert is_generic(fix_of(fix, "optimizer.step()", first_step=9))


def test_unscale_comes_before_a_clip_in_the_block_of_the_step() -> None:
    fix = clip_before_unscale.FIX
    after = changed(fix, CLIP).splitlines()
    assert after[3] == "        scaler.unscale_(self.optimizer)"
    assert after[:3] + after[4:] == CLIP.splitlines()
    of_values = clip_before_unscale.of_values(fix)
    assert "unscale_" in changed(of_values, CLIP.replace("grad_norm_", "grad_value_"))
    clip = "        norm = clip_grad_norm_(model.parameters(), 1.0)\n"
    each = CLIP.replace(clip, "").replace("    if last", f"{clip[4:]}    if last")
    many = "".join(f"        a = {number}\n" for number in range(6))
    for uncertain in (
        each,
        CLIP.replace("  # now", "\n        scaler.unscale_(self.optimizer)"),
        CLIP.replace("        scaler.step", "    if last:\n        scaler.step"),
        CLIP.replace(clip, f"{clip}        if skip:\n            continue\n"),
        CLIP.replace(clip, clip + many),
    ):
        assert uncertain != CLIP
        assert is_generic(fix_of(fix, uncertain)), uncertain
    assert is_generic(fix_of(fix, CLIP, others=1))
    assert is_generic(fix_of(fix, CLIP, via="accelerate"))


def test_the_second_of_two_steps_in_one_block_is_removed() -> None:
    twice = "optimizer.step()\nx = 1\noptimizer.step()\noptimizer.zero_grad()"
    assert changed(double_step.FIX, twice) == "optimizer.step()\nx = 1\noptimizer.zero_grad()"
    scaled = "scaler.step(optimizer)\nscaler.update()\noptimizer.step()"
    assert changed(double_step.FIX_SCALED, scaled) == "scaler.step(optimizer)\nscaler.update()"
    for uncertain in (
        "optimizer.step()\nif x:\n    optimizer.step()",
        "optimizer.step()\nloss.backward()\noptimizer.step()",
        "one.step()\ntwo.step()",
        "optimizer.step()\nscaler.step(optimizer)",
        "optimizer.step()\nwarm.up()",
    ):
        assert is_generic(fix_of(double_step.FIX, uncertain)), uncertain


def test_a_clip_moves_before_the_step_of_its_block() -> None:
    fix = after_step.FIX
    late = "loss.backward()\nopt.step()\nx = 1\nclip_grad_norm_(p, 1.0)\nopt.zero_grad()"
    right = "loss.backward()\nclip_grad_norm_(p, 1.0)\nopt.step()\nx = 1\nopt.zero_grad()"
    assert changed(fix, late) == right
    for uncertain in (
        late.replace("x = 1", "opt.zero_grad()"),
        late.replace("clip", "if x:\n    clip"),
        late.replace("opt.step", "scaler.step").replace("step()", "step(opt)"),
        "if x:\n    opt.step()\nclip_grad_norm_(p, 1.0)",
    ):
        assert is_generic(fix_of(fix, uncertain)), uncertain
    assert is_generic(fix_of(fix, late, others=1))
    by_value = [text.replace("grad_norm_", "grad_value_") for text in (late, right)]
    assert changed(after_step.FIX_VALUES, by_value[0]) == by_value[1]


def test_gradients_are_zeroed_after_the_step_and_not_before_it() -> None:
    fix = zeroed_before_step.FIX
    before = "loss.backward()\nopt.zero_grad()\nx = 1\ny = 1\nopt.step()\nz = 1"
    after = "loss.backward()\nx = 1\ny = 1\nopt.step()\nopt.zero_grad()\nz = 1"
    assert changed(fix, before) == after
    for uncertain in (
        before.replace("opt.zero", "model.zero"),
        before.replace("opt.zero", "if x:\n    opt.zero"),
        "opt.zero_grad()\nloss.backward()\nopt.zero_grad()\nopt.step()",
    ):
        assert is_generic(fix_of(fix, uncertain)), uncertain
    assert is_generic(fix_of(fix, before, others=1))


def test_a_call_of_a_framework_gets_the_divided_loss() -> None:
    lightning, accelerate = MICRO_BATCH_MEAN["lightning"], MICRO_BATCH_MEAN["accelerate"]
    manual = changed(lightning, "self.manual_backward(loss)", via="lightning")
    assert manual == "self.manual_backward(loss / 4)"
    own = changed(accelerate, "x = 1\naccelerator.backward(loss)  # a", via="accelerate")
    assert own == "x = 1\naccelerator.backward(loss / 4)  # a"
    for uncertain in (
        "with accelerator.accumulate(model):\n    accelerator.backward(loss)",
        "accelerator.backward(f(x))",
        "accelerator.backward(loss, retain_graph=True)",
    ):
        assert is_generic(fix_of(accelerate, uncertain, via="accelerate")), uncertain


def test_a_second_division_in_a_statement_is_removed() -> None:
    one = ONE_DIVISION["plain"]
    for division in ("loss = loss / K", "loss /= args.steps", "loss = loss / 4"):
        script = f"loss = f(x)\n{division}\nloss.backward()\nx = 1"
        assert changed(one, script) == "loss = f(x)\nloss.backward()\nx = 1"
    script = "loss = f(x)\nloss = loss / K\nx = 1\naccelerator.backward(loss)"
    after = "loss = f(x)\nx = 1\naccelerator.backward(loss)"
    assert changed(ONE_DIVISION["accelerate"], script, via="accelerate") == after
    for uncertain in (
        "loss = loss / 3\nx = 1\nloss.backward()",
        "loss = other / K\nx = 1\nloss.backward()",
        "loss = loss / K\nloss = loss / K\nloss.backward()",
        "if x:\n    loss = loss / K\nloss.backward()",
        "loss = loss / f(x)\nx = 1\nloss.backward()",
        "loss = total / K\nloss = loss / count\nloss.backward()",
        "loss = total / K\n(loss / count).backward()\nx = 1",
    ):
        assert is_generic(fix_of(one, uncertain)), uncertain


ZEROED_EACH = """\
for i, x in enumerate(loader):
    opt.zero_grad()
    (loss(x) / 4).backward()
    if (i + 1) % 4 == 0:
        opt.step()"""


def test_gradients_are_zeroed_where_the_optimizer_steps() -> None:
    fix = zeroed_every_microbatch.FIX
    zeroed = "    opt.zero_grad()\n"
    right = f"{ZEROED_EACH.replace(zeroed, '')}\n        opt.zero_grad()"
    assert changed(fix, ZEROED_EACH) == right
    after_backward = f"{ZEROED_EACH.replace(zeroed, '')}\n    opt.zero_grad()"
    assert changed(fix, after_backward) == right
    for uncertain in (
        ZEROED_EACH.replace("    opt.zero", "    if x:\n        opt.zero"),
        ZEROED_EACH.replace("opt.step()", "opt.step(closure)"),
        ZEROED_EACH.replace("if (i + 1) % 4 == 0:\n        ", ""),
        f"{ZEROED_EACH}\nif tail:\n    opt.step()",
        # below a guard, or in one of two branches
        ZEROED_EACH.replace("    opt.step()", "    if isfinite(norm):\n            opt.step()"),
        ZEROED_EACH.replace("if (i + 1) % 4 == 0:", "if scaler:\n        pass\n    else:"),
    ):
        assert is_generic(fix_of(fix, uncertain)), uncertain
    assert is_generic(fix_of(fix, ZEROED_EACH, others=1))
    assert is_generic(fix_of(fix, ZEROED_EACH, first_step=9))


def test_the_schedule_is_stepped_where_the_optimizer_steps() -> None:
    fix, each = (
        scheduled_every_microbatch.FIX,
        ZEROED_EACH.replace("opt.zero_grad", "scheduler.step"),
    )
    after = f"{each.replace('    scheduler.step()' + chr(10), '')}\n        scheduler.step()"
    assert changed(fix, each) == after
    assert is_generic(fix_of(fix, each, severity="info"))  # it may be planned in micro-batches


STEPPED_EACH = """\
loader = [*batches]
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y) / accum_steps
    loss.backward()
    opt.step()
    opt.zero_grad()"""


def test_the_optimizer_steps_once_per_window() -> None:
    fix = step_every_microbatch.FIX
    head, stepped = STEPPED_EACH.split("    opt.step()")
    below = "        opt.step()" + stepped.replace("    opt", "        opt")
    right = f"{head}    if (i + 1) % accum_steps == 0 or i + 1 == len(loader):\n{below}"
    assert changed(fix, STEPPED_EACH) == right
    for uncertain in (
        STEPPED_EACH.replace("accum_steps", "len(loader)"),  # the division may be too much
        STEPPED_EACH.replace("accum_steps", "batches"),
        STEPPED_EACH.replace("accum_steps", "micro_batch_size"),  # a mean over samples
        STEPPED_EACH.replace("y) /", "y / 255) /"),
        STEPPED_EACH.replace("(loader)", "(loader, 1)"),
        STEPPED_EACH.replace("[*batches]", "DataLoader(data)"),  # that of a stream has no length
        STEPPED_EACH.replace("(loader)", "(islice(loader, 10))"),  # where it ends is not known
        STEPPED_EACH.replace("i, (x, y) in enumerate(loader)", "x, y in loader"),
        STEPPED_EACH.replace("    opt.step", "    scheduler.step()\n    opt.step"),
        STEPPED_EACH.replace("    opt.zero_grad", "    print(i)\n    opt.zero_grad"),
        STEPPED_EACH.replace("    opt.step()", "    if x:\n        opt.step()"),
    ):
        assert is_generic(fix_of(fix, uncertain)), uncertain
    assert is_generic(fix_of(fix, STEPPED_EACH, others=1))
    assert is_generic(fix_of(fix, STEPPED_EACH, first_step=9))


def test_a_finding_about_another_optimizer_shows_the_lines_of_that_one() -> None:
    evidence = {"optimizer": 1, "micro_batches": 1}
    rule, fix = "loop.step_every_microbatch", step_every_microbatch.FIX_OF_OTHER
    finding = Finding(rule, 0, "warning", 1, 9, 5, "t", "s", fix, evidence)
    steps = {index: [CodeLocation("step", "a.py", 4 + index, 4 + index)] for index in (0, 1)}
    (result,) = with_code([finding], steps)
    assert [location.line for location in result.code] == [5]


def test_a_backward_that_a_library_calls_has_a_note_in_the_fix() -> None:
    fix = ONE_DIVISION["plain"]
    note = "\n# ignite calls backward: change the loss that it gets, or its options."
    assert fix_of(fix, "trainer.backward(batches)", via="ignite") == f"{fix}{note}"
    assert fix_of(fix, "trainer.backward(batches)", via="transformers") == fix


def test_a_loop_that_calls_autograd_grad_has_a_note_in_the_fix() -> None:
    fix = ONE_DIVISION["plain"]
    finding = Finding(RULES[fix], 0, "warning", 1, 9, 5, "t", "s", fix, {})
    for line, note in (
        ("sums = add(sums, torch.autograd.grad(loss, weights))", AUTOGRAD_GRAD),
        ("sums = add(sums, grad(loss, weights))", AUTOGRAD_GRAD),
        ("sums = add(sums, zero_grad(loss, weights))", ""),
    ):
        call = CodeLocation("backward", "a.py", 3, 3, 18, len(line), first=3, source=(line,))
        (result,) = with_code([finding], {0: [call]})
        assert result.fix == f"{fix}{note}"
