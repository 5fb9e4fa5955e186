"""ddp.never_synced"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from gradledger_monitor.ingest.schema import MicroBatch, StepRecord
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.ranks.norms import norms_are_equal
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.common import (
    NOT_COMBINED,
    SEVERAL_RANKS_TO_THE_END,
    combines_nothing,
    hook_combines_nothing,
    norms_by_rank,
    norms_differ,
    synced,
)
from gradledger_monitor.rules.ddp.model_averages import LOCAL_SGD, ModelAverages
from gradledger_monitor.rules.ddp.model_copies import ModelCopies
from gradledger_monitor.rules.ddp.replicas import SAME, differ_by
from gradledger_monitor.rules.definition import DEFAULTS, UNSTABLE, Parameter
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured
from gradledger_monitor.rules.state import declare

FIX = """\
loss = compute_loss(model(x), y)        # call the DDP wrapper, not model.module
loss.backward()"""

FIX_FSDP2 = """\
# of this window, which may be a short one; before the backward of micro-batch k:
model.set_requires_gradient_sync(k == len(window) - 1)
loss.backward()    # hybrid sharding: so set_requires_all_reduce, if the loop calls it"""

FIX_HOOK = """\
def hook(state, bucket):
    total = bucket.buffer() / dist.get_world_size()
    work = dist.all_reduce(total, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])    # not the bucket as it was"""

FIX_NO_SYNC = """\
last = k == len(window) - 1             # of this window, which may be a short one
with contextlib.nullcontext() if last else model.no_sync():
    compute_loss(model(x), y).backward()
# a loop that sets require_backward_grad_sync: True for the last micro-batch, before the forward"""


LATER = (
    ". If they average these later, as in local SGD, this is intended; the finding is withdrawn "
    "at their first average."
)
NO_WRAPPER = "no data-parallel wrapper holds the optimizer's parameters"
EQUAL_ALL_THE_SAME = (
    "no collective ran, and yet the gradients have the same norm on all ranks: they have the same "
    "data, something besides torch.distributed combines their gradients, or each rank scales its "
    "gradients to one norm"
)


class NeverSynced(Rule):
    """The ranks do not synchronise their gradients.

    **What it sees**

    A DDP or FSDP2 model, several ranks, and no gradient collective in a whole window that was
    stepped; or a comm hook of DDP after which each rank steps on its own gradients. Also without a
    wrapper: ranks that step on their own gradients, and take over the parameters of one of them
    after each step, or of each rank those that its optimizer holds.

    **Why it matters**

    Under DDP, each rank trains a separate model on its share of the data. Usually only one of them
    is saved, and the data and the time of the other ranks are lost. FSDP2 keeps gradients that it
    has not reduced outside ``.grad``: the optimizer steps without them, and a later window that is
    reduced has them, too.

    **What to do**

    DDP: call the wrapper, not ``model.module``, and run the last micro-batch outside
    ``no_sync()``. FSDP2: call ``set_requires_gradient_sync(True)`` before the last backward.

    It is a warning, and no error, where every window so far is one micro-batch under ``no_sync()``:
    without accumulation, that is what local SGD does before it averages the models.

    **When it is silent**

    Collectives between backward and step may synchronise the gradients; no wrapper holds the
    parameters of the optimizer, and the ranks copy none; the gradients have the same norm on all
    ranks, although no collective ran, and their parameters do not differ (not measured). Once the
    ranks average their models (local SGD, DiLoCo), also after the last step, an earlier finding is
    withdrawn. It is withdrawn as not measured once they exchange parts of their models (gossip,
    elastic averaging), once all models have become equal twice without being their average or a
    copy of one of them, or if they are equal when the process ends, after steps that were not
    sampled and in which collectives ran.

    **Incidents**

    jingyaogong/minimind#853, pytorch/pytorch#104336, huggingface/picotron#5
    """

    points_at = ("step", "backward")
    inhibits = (
        *("ddp.replica_drift", "ddp.uneven_microbatches", *UNSTABLE),
        *("reduction.wrong_denominator", "reduction.balance_off"),
    )

    # what FSDP2 adds to a later window; ranks under DDP have no such window
    inhibits_later = ("reduction.*", "norm.*")
    inhibits_later_under = "fsdp2"

    precondition = SEVERAL_RANKS_TO_THE_END

    windows = Parameter(5, "windows in a row after which the ranks copy the parameters of one")

    state = declare(_averages=ModelAverages, _copies=ModelCopies, _combined=bool, _defers=bool)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._averages, self._copies = ModelAverages(), ModelCopies()
        self._combined = False  # a comm hook, or the loop, has combined gradients
        self._defers = False  # the loop accumulates, or the wrapper has synchronised before

    def evaluate(self, window: Window) -> Outcome:
        """No gradient collective in any rank's window."""
        facts = window.facts
        record = facts.record
        if record.left_open is not None:
            return self._averages.after_the_last_step(window, apart=True, other=False)
        self._copies.add(facts)
        if self._copies.windows >= self.windows:
            return self._copies.finding(facts)
        if record.wrapper is None:
            return not_applicable(NOT_COMBINED if combines_nothing(facts) else NO_WRAPPER)
        if record.skipped or not facts.applied:
            return OK
        self._defers |= any(len(r.micro_batches) != 1 for r in facts.records.values())
        if any(synced(record, m) for record, m in _applied_on_all_ranks(facts)):
            self._averages.add(facts)
            self._defers = True
            self._combined |= facts.all_reduce is not None and facts.all_reduce.is_combined
            if not hook_combines_nothing(facts):
                return OK
            if self._averages.mixes:
                return self._averages.outcome("ok", LOCAL_SGD)
            # a hook of local SGD combines at first
            return OK if self._combined else _of_hook(facts)
        wrappers = {m.wrapper for _, m in facts.applied}
        if record.wrapper == "fsdp2" and wrappers == {"no_sync"}:
            return _not_reduced(facts)  # no collective of the loop reaches what is outside .grad
        if _may_synchronise_by_hand(facts):
            return OK
        self._averages.add(facts)
        if self._averages.mixes and record.wrapper == "ddp":
            return self._averages.outcome("not_applicable", LOCAL_SGD)
        if record.wrapper != "ddp" and wrappers != {"no_sync"}:
            return OK
        if norms_are_equal(facts.records.values()) and not _models_differ(facts):
            return not_measured(EQUAL_ALL_THE_SAME)
        under_no_sync = wrappers == {"no_sync"}
        cause, ranks = _cause(wrappers, record.wrapper), facts.run.world_size
        return finding(
            "error" if self._defers or not under_no_sync else "warning",
            "Gradients are not synchronised between the ranks",
            f"No all-reduce ran in the {counted(facts.micro_batches, 'micro-batch')} of this window"
            f"{cause}. Each of the {ranks} ranks steps on its own gradients, so the ranks "
            f"train different models{LATER if under_no_sync else '.'}",
            _fix(wrappers),
            ranks=ranks,
            micro_batches=facts.micro_batches,
            bypassed=wrappers == {"bypassed"},
            norms=norms_by_rank(facts),
        )


def _models_differ(facts: StepFacts) -> bool:
    """Whether the ranks have stepped on different gradients before, whatever their norms are."""
    records = facts.records.values()
    rows = [[r.parameters, *(r.replica.fingerprints if r.replica else ())] for r in records]
    columns = (list(map(number, column)) for column in zip(*rows, strict=False))
    return any(
        differ_by([v for v in c if v is not None and math.isfinite(v)], SAME) for c in columns
    )


def _of_hook(facts: StepFacts) -> Outcome:
    return finding(
        "error",
        "The comm hook of DDP does not combine the gradients",
        f"The comm hook ran in backward, and yet each of the {facts.run.world_size} ranks steps "
        "on the gradients that it computed itself, so the ranks train different models. What the "
        "hook returns replaces the gradients.",
        FIX_HOOK,
        ranks=facts.run.world_size,
        micro_batches=facts.micro_batches,
        norms=norms_by_rank(facts),
    )


def _not_reduced(facts: StepFacts) -> Outcome:
    """FSDP2: what was not reduced is not in ``.grad``."""
    return finding(
        "error",
        "FSDP reduces no gradients before the optimizer steps",
        f"None of the {counted(facts.micro_batches, 'micro-batch')} of this window synchronises: "
        "set_requires_gradient_sync(False) or, for hybrid sharding, set_requires_all_reduce(False) "
        "holds for all of them. Their gradients stay in buffers outside .grad"
        + (", so the optimizer has none to apply" if facts.record.empty else "")
        + "; FSDP adds them to those of the next window that it reduces.",
        FIX_FSDP2,
        wrapper="fsdp2",
        ranks=facts.run.world_size,
        micro_batches=facts.micro_batches,
    )


def _cause(wrappers: Collection[str | None], wrapper: str | None) -> str:
    if wrappers == {"bypassed"}:
        return ": forward calls model.module, not the DDP wrapper"
    if wrappers == {"no_sync"}:
        flag = " or with require_backward_grad_sync = False" if wrapper == "ddp" else ""
        return f": every micro-batch runs under no_sync(){flag}"
    return ""


def _fix(wrappers: Collection[str | None]) -> str:
    if "no_sync" not in wrappers or "bypassed" in wrappers:
        return FIX
    return FIX_NO_SYNC


def _may_synchronise_by_hand(facts: StepFacts) -> bool:
    """Whether collectives after backward may have combined the gradients.

    They did not if the gradient sample shows no synchronisation and the ranks' norms differ.
    """
    after = bool(facts.record.collectives_after)
    return after and (facts.record.sync != "none" or not norms_differ(facts))


def _applied_on_all_ranks(facts: StepFacts) -> Iterator[tuple[StepRecord, MicroBatch]]:
    """What was synchronised and then zeroed is not in the gradients of the step."""
    for rank, applied in facts.applied_by_rank.items():
        for _, micro_batch in applied:
            yield facts.records[rank], micro_batch
