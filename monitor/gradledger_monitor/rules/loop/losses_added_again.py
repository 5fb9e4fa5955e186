"""loop.losses_added_again"""

from __future__ import annotations

from collections.abc import Sequence

from gradledger_monitor.ingest.schema import MicroBatch
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.losses.repeated import repeated_backwards
from gradledger_monitor.rules.balance.after_backward import applied_again
from gradledger_monitor.rules.balance.patterns import FAIR
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured

FIX = """\
for i, (x, y) in enumerate(loader):
    loss = loss_fn(model(x), y) / K
    loss.backward()                  # on each loss by itself, without retain_graph
    total += loss.detach()           # a total is for the log
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()"""

FIX_OF_SAME = """\
loss.backward()                  # once for each loss: remove the other call, and retain_graph"""

NOT_SHOWN = (
    "backward is called again on the same loss, and the balance does not show whether its "
    "gradients are applied more than once"
)
INTENDED = (
    " The losses are of different kinds: if they are weighted so on purpose, nothing is wrong."
)


class LossesAddedAgain(Rule):
    """Backward is called on a running total, which contains the losses of earlier backwards.

    **What it sees**

    In a window, the backward of each micro-batch has all losses of the one before, the very same
    nodes of the autograd graph, and further ones; and the gradients were not zeroed in between. Or
    a backward has the losses of the one before, no other ones, and adds the same gradients again;
    and the balance is larger by as much.

    **Why it matters**

    A gradient is added once for each backward that contains its loss: of K micro-batches, or of K
    tasks, the first counts K times, the last once. The graphs of all of them stay in memory, too.

    It is a warning if the losses are of different kinds: those of tasks may be weighted so on
    purpose.

    **What to do**

    Call ``backward()`` on each loss, and add up detached values for the log; or add up the losses,
    and call ``backward()`` once, after the last micro-batch. Where ``retain_graph=True`` was added
    because PyTorch refused a second backward, remove it.

    **When it is silent**

    One graph has several losses, each with its backward; a loss is differentiated twice
    for different parameters, or with the gradients zeroed in between; the gradients of a second
    backward on a loss are taken back before the step, or each backward has a share of the loss;
    ``inputs=`` leaves no way back from the earlier losses; a backward adds no loss, and its
    gradients differ from the last; two backwards, of which the second adds a loss of another kind.

    **Incidents**

    textbook (``retain_graph=True``, added because PyTorch refused a second backward)
    """

    points_at = ("backward", "loss")

    def evaluate(self, window: Window) -> Outcome:
        """Every backward after the first contains all losses of the one before, and more."""
        record = window.facts.record
        if repeated := applied_again(window.facts):
            return _of_same_losses(record.micro_batches, repeated)
        again = repeated_backwards(record.micro_batches, record.half_precision)
        if again and window.balance.pattern not in FAIR:
            return not_measured(NOT_SHOWN)
        if not window.facts.adds_losses_again:
            return OK
        batches = len(record.micro_batches)
        losses = len(record.micro_batches[-1].terms)
        kinds = [{term.kind for term in m.terms} for m in record.micro_batches]
        of_one_kind = kinds[0] == kinds[-1]  # else the first may weigh more on purpose
        return finding(
            "error" if of_one_kind else "warning",
            "Losses of earlier backwards are added again",
            f"Each of the {batches} backwards of this window starts from the losses of all before "
            f"it, too: the loss of the first was differentiated {batches} times, that which the "
            f"last one added once.{'' if of_one_kind else INTENDED}",
            FIX,
            micro_batches=batches,
            losses_of_the_last_backward=losses,
        )


def _of_same_losses(batches: Sequence[MicroBatch], repeated: int) -> Outcome:
    starts, adds = ("starts", "adds") if repeated == 1 else ("start", "add")
    return finding(
        "error",
        "Backward is called again on the same loss",
        f"{repeated:,} of the {len(batches):,} backwards of this window {starts} from the very "
        f"losses of the one before, and {adds} the same gradients once more: the optimizer applies "
        "them more than once.",
        FIX_OF_SAME,
        micro_batches=len(batches),
        repeated=repeated,
    )
