"""loop.never_stepped"""

from __future__ import annotations

from collections.abc import Iterator

from gradledger_monitor.ingest.schema import LeftOpen
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.norm.dead_layer import names_of
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import AT_THE_END, OK, Rule, Window, finding

MANY = 1_000  # times zeroed, and steps of the other optimizer: few that begin later wait so long
LONG = 64  # backwards: more than one step takes, if they are never zeroed
ZEROED = 8  # times: the loop begins anew, and does not accumulate for one step
MOST_COUNTED = 4096  # backwards that the hooks keep of one window

FIX = """\
# instead of the division by K, and of the step after K micro-batches:
window = min(K, len(loader))         # an epoch may be shorter
(loss / window).backward()
if (i + 1) % window == 0:
    optimizer.step()
    optimizer.zero_grad()"""

FIX_BESIDE = """\
# where the other optimizer steps, or where this one should:
second.step()
second.zero_grad()
# parameters that should not be trained: requires_grad_(False), and no optimizer for them"""

FIX_GUARD = """\
if not norm < limit:                 # count what the guard leaves out, and print why
    left_out += 1
    print(f"{left_out} steps are left out: norm {norm}, limit {limit}")"""


class NeverStepped(Rule):
    """Backwards pile up, and no optimizer step follows.

    **What it sees**

    When the process ends: more than 64 backwards have added to the gradients of the only
    optimizer, and it has never stepped. Its parameters have not changed either. After a step: more
    than 8 times the backwards of the largest window before, and at least half of their losses or
    measured norms were not finite; or all losses were scaled by a ``GradScaler``, and the gradients
    were zeroed at least 8 times; or they add to the same gradients, which are never zeroed, and are
    more than those of all windows before. The same of more than 16 backwards of the lines whose
    backwards were stepped on before, if the gradients were zeroed at least 8 times: a warning.

    Of several optimizers: one has never stepped, another one has, more than 16 backwards have added
    to the gradients of the first, and nothing has changed its parameters until the process ended.
    It is information, of gradients that were zeroed at least 8 times or of more than 64 backwards:
    the optimizer may begin later. It is a warning if they were zeroed at least 1,000 times, the
    other one made as many steps, and no exception is known to have ended the process.

    **Why it matters**

    Nothing is learnt from these backwards. The loss is still reported.

    **What to do**

    Look at the condition of the step: an epoch that is shorter than the number of micro-batches
    it counts to, a counter that starts again, a guard that is never satisfied once the parameters
    are NaN, a ``GradScaler`` whose ``step`` is not called.

    **When it is silent**

    If another optimizer has stepped: this one has stepped before and waits for it (a GAN), shares
    parameters with it, or is dropped by the script, as where the function that trains returns; or
    each other one is reported for an unfinished schedule or for models that changed after its last
    step. Of several optimizers that never stepped, one is reported.

    The loop updates the parameters itself; the process ends within fewer backwards; after a step,
    finite losses of other lines whose gradients are zeroed, that give gradients to the inputs, too,
    or that are fewer than in the training: a script may measure gradients after it, for a Fisher
    information, a saliency map or an attack.

    It is a warning, and no error, as long as the gradients are not zeroed: one step may take more
    micro-batches than have run.

    **Incidents**

    textbook (a counter that starts again with each epoch)
    """

    points_at = ("idle_backward", "backward", "scaled_backward")
    precondition = AT_THE_END

    def evaluate(self, window: Window) -> Outcome:
        """What the process left open at its end."""
        facts = window.facts
        left_open = facts.record.left_open
        assert left_open is not None
        if left_open.idle:
            return _beside(left_open, facts)
        none = left_open.planned or not left_open.backwards
        if none or (facts.step > 1 and not _trains(left_open)):
            return OK
        fails = facts.step > 1 and _fails(left_open)
        begun_anew = fails or (left_open.zeroed >= ZEROED and not left_open.again)
        before = f" after step {facts.step - 1:,}" if facts.step > 1 else ""
        atleast = "At least " if left_open.backwards >= MOST_COUNTED else ""
        return finding(
            "error" if begun_anew else "warning",
            "No optimizer step follows the backwards",
            f"{atleast}{counted(left_open.backwards, 'backward')} added to the gradients of "
            f"{facts.optimizer_name}{before}, and no step followed until the process ended. "
            f"{' '.join(_what_the_loop_did(left_open))}"
            f"{'' if begun_anew else _what_it_may_be(left_open, facts.step)}",
            FIX_GUARD if facts.step > 1 and _goes_on(left_open) else FIX,
            backwards=left_open.backwards,
            zeroed=left_open.zeroed,
            nonfinite_losses=left_open.nonfinite,
            nonfinite_norms=left_open.nonfinite_norms,
            scaled=left_open.scaled,
        )


def _beside(left_open: LeftOpen, facts: StepFacts) -> Outcome:
    """An optimizer that never stepped, although another one did."""
    begun_anew = left_open.zeroed >= ZEROED
    if not begun_anew and left_open.backwards <= LONG:
        return OK
    lasted = min(left_open.zeroed, facts.step - 1) >= MANY
    name, steps = left_open.idle, counted(facts.step - 1, "step")
    names = names_of(left_open.names) or "parameters"
    atleast = "At least " if left_open.backwards >= MOST_COUNTED else ""
    return finding(
        "warning" if lasted and not left_open.stopped else "info",
        f"An optimizer ({name}) never stepped, although its parameters got gradients",
        f"{atleast}{counted(left_open.backwards, 'backward')} added to the gradients of {names}. "
        f"The optimizer that holds them ({name}) never stepped until the process ended; another "
        f"one ({facts.optimizer_name}) made {steps}. {' '.join(_what_the_loop_did(left_open))} "
        "Nothing else has changed the values of these parameters since the first of these "
        "backwards. If their optimizer begins later, let the run go on.",
        FIX_BESIDE,
        backwards=left_open.backwards,
        zeroed=left_open.zeroed,
        steps_beside=facts.step - 1,
        parameters=left_open.names,
    )


def _trains(left_open: LeftOpen) -> bool:
    """Whether the backwards after a step belong to the training, and measure no gradients."""
    piles_up = not left_open.zeroed and left_open.backwards > left_open.trained
    return _fails(left_open) or ((piles_up or _goes_on(left_open)) and not left_open.inputs)


def _goes_on(left_open: LeftOpen) -> bool:
    """Whether the loop of the training goes on without its step."""
    return left_open.again and left_open.zeroed >= ZEROED


def _measures_windows(left_open: LeftOpen) -> bool:
    """Whether windows were prepared for a step: one norm was measured for each that was zeroed."""
    return left_open.zeroed >= ZEROED and abs(left_open.norms - left_open.zeroed) <= 1


def _fails(left_open: LeftOpen) -> bool:
    """Whether a guard or a scaler lets no step through."""
    is_scaled = left_open.scaled == left_open.backwards and left_open.zeroed >= ZEROED
    return is_scaled or _mostly_nonfinite(left_open)


def _mostly_nonfinite(left_open: LeftOpen) -> bool:
    return 2 * left_open.nonfinite >= left_open.backwards or (
        left_open.norms > 0 and 2 * left_open.nonfinite_norms >= left_open.norms
    )


def _what_the_loop_did(left_open: LeftOpen) -> Iterator[str]:
    if left_open.zeroed:
        yield f"The gradients were zeroed {counted(left_open.zeroed, 'time')} in between."
    else:
        yield "The gradients were not zeroed in between."
    if left_open.nonfinite:
        yield f"The loss was not finite at {left_open.nonfinite:,} of them."
    if left_open.nonfinite_norms:
        norms = counted(left_open.norms, "measured norm")
        yield f"{left_open.nonfinite_norms:,} of {norms} were not finite."
    elif _measures_windows(left_open):
        yield (
            f"The loop measured {left_open.norms:,} norms in between, and all were finite. The "
            "step is not called, its condition is never met, or a guard with a limit of the norm "
            "leaves it out."
        )
    if left_open.scaled and not left_open.idle:
        yield (
            "The losses were scaled, and scaler.step was not called. If a guard waits for finite "
            "gradients, it must call scaler.update() where it leaves out a step: nothing else "
            "lowers the scale."
        )


def _what_it_may_be(left_open: LeftOpen, step: int) -> str:
    if step == 1:
        return " If one step takes more micro-batches than these, let the run go on."
    if _goes_on(left_open):
        return (
            " They are of the lines whose backwards were stepped on before. A guard in the loop "
            "may leave out the step."
        )
    return (
        f" All steps before together took at most {counted(left_open.trained, 'backward')}. If "
        "these measure gradients after the training, zero the gradients before each of them."
    )
