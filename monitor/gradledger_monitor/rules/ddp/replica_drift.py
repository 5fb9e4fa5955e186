"""ddp.replica_drift"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.clipping import clipping_of_window
from gradledger_monitor.model.findings import Doubt, Outcome, Status
from gradledger_monitor.model.ranks.held_in_parts import (
    exchange_activations,
    exchange_tokens,
)
from gradledger_monitor.model.ranks.manual_all_reduce import ManualAllReduce, RecordsByRank
from gradledger_monitor.model.ranks.norms import norms_differ
from gradledger_monitor.model.ranks.topology import NORMALISED
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp import drift_texts as texts
from gradledger_monitor.rules.ddp.common import (
    SEVERAL_RANKS_OR_STAGES,
    all_reduce_once,
    finite_values,
    hook_combines_nothing,
    may_be_divided,
    norms_are_same_bits,
    of_shards,
    synced_beside,
    unwaited,
)
from gradledger_monitor.rules.ddp.drift_texts import FIX
from gradledger_monitor.rules.ddp.groups_apart import GroupsApart
from gradledger_monitor.rules.ddp.model_averages import (
    AVERAGED,
    EQUALISED,
    LOCAL_SGD,
    MIXED,
    ModelAverages,
)
from gradledger_monitor.rules.ddp.replicas import SAME, Replicas, differ_by
from gradledger_monitor.rules.ddp.tied_stages import TiedStages, last_stage_alone
from gradledger_monitor.rules.ddp.trained_apart import (
    ALONE,
    ALONE_AND_COMMUNICATES,
    CHANGED,
    NO_LONGER,
    OF_ALL_TOKENS,
    OF_PARTS,
    SHARED_OUT,
    PartsApart,
    PeersApart,
)
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import (
    OK,
    Rule,
    Window,
    finding,
    not_applicable,
    not_measured,
    ok,
)
from gradledger_monitor.rules.state import declare


class ReplicaDrift(Rule):
    """The model replicas differ between the ranks.

    **What it sees**

    With DDP: after a synchronisation, the global gradient norm or the fingerprints of the
    parameters differ between the ranks, or their learning rates differ; or the optimizer steps
    parameters that the wrapper does not hold, beside those of the same module or row of modules. A
    warning: they are a whole part of the model; only another optimizer steps them; or the script
    lets DDP ignore them (``_set_params_and_buffers_to_ignore_for_model``).
    Information: those outside differed from the start, as parts of one head do.

    A warning, with FSDP2: parameters that the script lets it ignore (``ignored_params``) become
    different. With DDP, too, if they were equal at first within groups of ranks alone.

    With an all-reduce by hand: gradients are combined, but some parameters are left out; only the
    ranks of a group combine theirs; each rank scales the sum by its own number; the replicas start
    from different weights; or the step does not wait for an asynchronous all-reduce of gradients.
    A warning, if the parameters that are left out are a whole part of the model, such as a head,
    adapters or norm layers: each rank may be meant to train its own.
    Or the optimizers of the ranks share out the parameters, as in ZeRO, and some of these are
    stepped on the gradients of one rank alone. Or the copies of parameters that groups of ranks
    hold become different, which the loop combines over other groups, or which are experts: the
    ranks communicate inside backward, too. Or the ranks hold one model in parts, which have
    gradients, and equal losses of the same data at first, but different ones once their copies of
    the other parts differ. A warning, with DTensors: a parameter that is not placed over the
    tensor-parallel ranks becomes different; information, if a matrix does: experts that all ranks
    draw from one seed are equal at first, too.
    Information: they step on sums that are equal up to rounding, and not bit by bit.
    A warning: as many numbers as there are gradients are all-reduced before each step, but each
    rank steps on the gradients that it computed.

    With a pipeline: a matrix of an earlier stage that equals one of the last stage at the first
    step, such as an embedding and its head, becomes different. Or, with several pipelines, equal
    copies of an earlier stage do, while those of the last stage are combined, or the other way
    round. These are warnings; information, where the copies of an earlier stage may be different
    stages that start from equal values: ``torch.distributed.pipelining`` states their positions.

    **Why it matters**

    Data parallelism assumes equal replicas. Once they differ, the combined gradient belongs to
    none of them, and the saved rank is not the model that was trained.

    **What to do**

    Put every trained parameter inside the wrapper, or into the all-reduce. Wrap the model again
    after parameters of it were added (a new head, LoRA) or unfrozen: DDP synchronises those that
    are there and require gradients when it is created. Start all ranks from the same weights, and
    let all of them take the same steps.

    **When it is silent**

    Sharded parameters; ranks that combine no gradients, such as independent trainings, or groups of
    ranks under DDP that do not combine theirs (not measured if their parameters were equal at
    first, or if the optimizers of the ranks hold different parameters), or local SGD; parameters
    that the ranks average from time to time; collectives inside backward that may be those of model
    parallelism; another rule names the cause. Not measured: parameters that become different where
    the ranks exchange activations by all-to-all, which may be of experts. A router that is left out
    of the all-reduce is among them: an expert may start from equal values on all ranks, too.

    **Incidents**

    speechbrain/speechbrain#2010, pytorch/pytorch#112152
    """

    points_at = ("step",)
    by_window = False  # replicas that are equal show what came before
    windows = Parameter(
        5,
        "windows in a row in which groups of ranks, or an optimizer beside DDP, train apart",
    )
    windows_of_copies = Parameter(
        20, "windows in a row in which the ranks all-reduce as much as their gradients, unused"
    )

    precondition = SEVERAL_RANKS_OR_STAGES

    state = declare(
        _replicas=Replicas,
        _groups=GroupsApart,
        _tied=TiedStages,
        _parts=PartsApart,
        _peers=PeersApart,
        _in_groups=int,
        _beside=int,
        _started_apart=bool,
        _averages=ModelAverages,
        _combined=bool,
        _changed=bool,
        _copies=int,
        _reported_apart=bool,
        _reported_other=bool,
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._replicas = Replicas()
        self._groups = GroupsApart()
        self._tied = TiedStages()
        self._parts, self._peers = PartsApart(), PeersApart()
        self._in_groups = 0  # windows in a row
        self._beside = 0  # windows in a row whose backward DDP synchronised for other parameters
        self._started_apart = False  # combined gradients of parameters that differed at first
        self._averages = ModelAverages()
        self._combined = False  # gradients have been combined over all ranks
        self._changed = False  # something else than the optimizer has changed the parameters
        self._copies = 0  # windows in a row with an all-reduce of all gradients, which none used
        self._reported_apart = False  # a finding on ranks, or groups, that train apart
        self._reported_other = False  # and another one

    def evaluate(self, window: Window) -> Outcome:
        """Equal gradients and parameters on all ranks, and nothing outside the wrapper."""
        outcome, facts = self._evaluate(window), window.facts
        if outcome.status == "finding":
            combined = facts.all_reduce
            apart = facts.record.sync != "averaged" and (combined is None or bool(combined.groups))
            self._reported_apart |= apart
            self._reported_other |= not apart
        return outcome

    def _evaluate(self, window: Window) -> Outcome:
        facts = window.facts
        if facts.record.left_open is not None:
            apart, other = self._reported_apart, self._reported_other
            return self._averages.after_the_last_step(window, apart, other)
        tied = self._tied.add(facts)
        if facts.run.parts:  # they have other losses once their copies differ
            self._replicas.add(facts)
            self._parts.add(facts, self._replicas)
        copies_apart = self._peers.add(facts)
        if copies_apart:
            return texts.of_peers(copies_apart, self._peers.copies, list(facts.run.tensor_peers))
        if tied or facts.run.world_size == 1:
            return tied or not_applicable("no other rank trains the same part")
        wrapper = facts.record.wrapper
        ignored = facts.record.outside if wrapper == "fsdp2" else None
        sharded = any(r.sharded for r in facts.records.values())
        if (wrapper not in ("ddp", None) and not ignored) or (sharded and not ignored):
            self._groups.add(facts)
            return self._groups.unknown() or of_shards(facts)
        self._replicas.add(facts)
        copies = self._of_copies_in_groups(facts)
        if copies is not None:
            return copies
        if ignored:
            return self._beside_fsdp2(facts, ignored)
        if wrapper is None:
            return self._by_hand(facts)
        if facts.missing_ranks:
            return not_measured(facts.missing_ranks)
        return OK if facts.record.skipped else self._under_ddp(facts)

    def _of_copies_in_groups(self, facts: StepFacts) -> Outcome | None:
        """Of experts: the ranks combine other gradients, and exchange activations or combine those
        of the experts over other groups. Heads of their own, from a few seeds, do neither."""
        if not self._copies_differ(facts) or facts.record.skipped:
            return None
        combined = facts.all_reduce
        groups = [group for groups in self._replicas.copies.values() for group in groups]
        parts = map(sorted, combined.parts if combined else ())
        other = [part for part in parts if part not in groups]
        averaged = facts.record.sync == "averaged" and facts.record.wrapper is not None
        by_hand = combined is not None and (combined.partly or combined.is_known)
        if not (averaged or by_hand):
            return None
        if not (other or exchange_activations(list(facts.records.values()))):
            return None
        return texts.of_groups(self._replicas, other)

    def _copies_differ(self, facts: StepFacts) -> bool:
        """Whether copies that groups of ranks hold differ, and nothing averages them."""
        replicas = self._replicas
        averaged = replicas.equal_again or replicas.copies_equal_again
        return bool(replicas.copies_apart) and not (averaged or facts.missing_ranks)

    # ------------------------------------------------------------------ under DDP

    def _under_ddp(self, facts: StepFacts) -> Outcome:
        record = facts.record
        outside = record.outside or 0
        norms, rates = finite_values(facts, "norm"), finite_values(facts, "lr")
        unknown = [r.missing["replica"] for r in facts.records.values() if "replica" in r.missing]
        if unknown:  # such as a rank that is in its next Join already
            return not_measured(unknown[0])
        averaged = record.sync == "averaged"
        if averaged and self._replicas.parts:
            return Doubt("not_measured", SHARED_OUT)
        self._averages.add(facts)
        self._groups.add(facts)
        if self._averages.mixes and not averaged:
            return self._of_averages("not_applicable", LOCAL_SGD)
        comparable = record.sync != "unknown" and not self._replicas.equal_again
        drifted = comparable and bool(self._replicas.drifted)
        excluded = record.excluded
        if excluded and averaged and len(self._replicas.drifted) <= excluded:
            return self._excluded(facts, excluded, drifted)
        if record.collectives_after and not drifted:  # what these do was not observed
            return self._groups.unknown() or OK
        norms_differ = averaged and differ_by(norms, facts.tolerance)
        apart = drifted or differ_by(finite_values(facts, "parameters"), SAME)
        if outside and len(norms) == len(facts.records) and not (norms_differ or apart):
            outside = 0  # hooks of the script may combine their gradients in backward
        if not (outside or norms_differ or apart or differ_by(rates, SAME)):
            return self._groups.unknown() or OK
        if outside:
            text = texts.outside(outside, self._replicas, FIX)
        else:
            text = texts.Text(
                texts.APART, texts.differences(norms_differ, apart, norms, rates), texts.FIX_APART
            )
            if hook_combines_nothing(facts):
                summary = text.summary + texts.HOOK_COMBINES_NOTHING
                text = text._replace(summary=summary, fix=texts.FIX_OF_HOOK)
        return finding(
            text.severity,
            text.title,
            text.summary,
            text.fix,
            outside=outside,
            norms=norms[:16],
            parameters_differ=apart,
            parameters=self._replicas.listed(self._replicas.apart)[:16],
            learning_rates=rates[:16],
        )

    def _excluded(self, facts: StepFacts, excluded: int, drifted: bool) -> Outcome:
        """Parameters that the script lets DDP ignore; experts may be meant to differ."""
        replicas = self._replicas
        if facts.record.collectives_after:
            return self._groups.unknown() or OK
        if not drifted:
            copies = self._copies_differ(facts)
            ignored = texts.of_ignored_groups(replicas, "DDP", excluded) if copies else None
            return ignored or self._groups.unknown() or OK
        return finding(
            "warning",
            f"Ignored by DDP, and not synchronised: {counted(len(replicas.drifted), 'parameter')}",
            f"The script lets DDP ignore {counted(excluded, 'parameter')}, whose gradients the "
            f"loop does not reduce between backward and step either. "
            f"{texts.drift(replicas.drifted, replicas.total)}. If each rank is meant to train its "
            "own, as experts that exchange tokens, this is intended.",
            texts.FIX_EXCLUDED,
            excluded=excluded,
            parameters=replicas.listed(replicas.drifted)[:16],
            parameters_total=replicas.total,
        )

    # ------------------------------------------------------------------ beside a wrapper

    def _beside_fsdp2(self, facts: StepFacts, ignored: int) -> Outcome:
        """Parameters that FSDP2 ignores, of which each rank has its own copy."""
        if facts.missing_ranks:
            return not_measured(facts.missing_ranks)
        drifted = self._replicas.drifted
        if facts.record.collectives_after:
            return OK
        if not drifted and self._copies_differ(facts):
            return texts.of_ignored_groups(self._replicas, "FSDP2", ignored)
        if not drifted or self._replicas.equal_again:
            return OK
        return finding(
            "warning",
            f"Ignored by FSDP2, and not synchronised: {counted(ignored, 'parameter')}",
            f"FSDP2 does not reduce the gradients of {counted(ignored, 'parameter')} that it "
            "ignores, and the loop does not either. Each rank updates its own copy: they were "
            f"equal at first, and {texts.share(drifted, ignored)} now.{texts.MAY_BE_PERSONAL}",
            texts.FIX_IGNORED,
            outside=ignored,
            parameters=self._replicas.listed(drifted)[:16],
        )

    def _count_beside_ddp(self, facts: StepFacts) -> int:
        """Windows in a row in which the parameters of this optimizer drift, which no wrapper holds,
        while DDP synchronises others."""
        replicas = self._replicas
        apart = bool(replicas.drifted) and not (replicas.equal_again or facts.missing_ranks)
        unknown = any("replica" in record.missing for record in facts.records.values())
        self._beside = self._beside + 1 if apart and synced_beside(facts) and not unknown else 0
        return self._beside

    # ------------------------------------------------------------------ by hand

    def _by_hand(self, facts: StepFacts) -> Outcome:
        combined, replicas = facts.all_reduce, self._replicas
        self._averages.add(facts)
        self._parts.add(facts, replicas)
        copies = () if replicas.equal_again else self._parts.differ(replicas)
        if copies:
            rows = facts.run.parts or facts.records
            return texts.of_parts(replicas, copies, len(rows), _clipped_differently(rows))
        if self._count_beside_ddp(facts) >= self.windows:
            return texts.of_unwrapped(replicas, self._beside)
        if replicas.drifted and unwaited(facts) and not facts.missing_ranks:
            return texts.of_unwaited(replicas, unwaited(facts))
        if combined is None:
            self._in_groups = 0
            return self._of_averages("ok", AVERAGED) if self._averages.equal else self._alone(facts)
        if 0 < combined.of_owners < 1:
            return texts.of_owners(combined.of_owners, facts.run.world_size)
        self._combined |= combined.is_known
        self._in_groups = self._in_groups + 1 if combined.groups else 0
        if facts.step == 1 and combined.is_known:
            self._started_apart = replicas.start_apart(facts)
        if replicas.left_out:
            return not_measured(texts.not_averaged(replicas.left_out, replicas.total))
        if replicas.equal_again:
            return self._of_averages("ok", EQUALISED)
        if not replicas.apart and not combined.scales:
            return OK
        exchange = exchange_tokens(facts.records)
        drifted = replicas.drifted_beside_experts if exchange else replicas.drifted
        if exchange and drifted:
            return Doubt("not_measured", texts.MAY_BE_EXPERTS)
        if not combined.is_combined:
            return not_measured(combined.reason)
        if combined.parts and combined.is_known and not drifted:
            return ok("groups of ranks hold other parameters than the rest")
        if may_be_divided(facts):
            return not_measured("the ranks may hold parts of one model, and not replicas")
        if combined.groups and (self._in_groups < self.windows or replicas.differed_at_start):
            return not_applicable("groups of ranks train apart")
        if not (combined.scales or replicas.drifted or self._started_apart):
            return not_measured(texts.DIFFERED_AT_START)
        if combined.factor and replicas.apart_by_rounding and not norms_are_same_bits(facts):
            return texts.of_rounding(replicas)
        text = self._difference(facts, combined)
        return finding(
            text.severity,
            text.title,
            text.summary,
            text.fix,
            parameters=replicas.listed(replicas.apart)[:16],
            parameters_apart=len(replicas.apart),
            parameters_total=replicas.total,
            groups=[list(group) for group in combined.groups[:16]],
            scales=list(combined.scales[:16]),
            norms=finite_values(facts, "norm")[:16],
            learning_rates=finite_values(facts, "lr")[:16],
        )

    def _alone(self, facts: StepFacts) -> Outcome:
        """Each rank steps on its own gradients: an ensemble, local SGD, or a mistake.

        The number of collectives is no evidence: norms of layers for a log need as many. What was
        measured of earlier steps does not make up for replicas that drift now.
        """
        records, replicas = facts.records.values(), self._replicas
        self._changed |= all(record.models is not None for record in records)
        self._copies = self._copies + 1 if all_reduce_once(facts) else 0
        if replicas.parts and not facts.missing_ranks:
            return Doubt("not_measured", OF_PARTS)
        if not replicas.drifted or replicas.equal_again or facts.missing_ranks:
            return not_applicable("no DDP model")
        if self._changed:
            return Doubt("not_measured", MIXED if self._averages.mixed else CHANGED)
        if self._combined:
            return Doubt("not_measured", NO_LONGER)
        if self._copies >= self.windows_of_copies and len(facts.run.optimizers) == 1:
            return self._of_copies()
        if facts.factor_unmeasured == NORMALISED:
            return Doubt("not_measured", OF_ALL_TOKENS)
        of_last = last_stage_alone(facts, replicas)
        if of_last is not None:
            return of_last
        communicates = any(record.collectives_after for record in records)
        return Doubt("not_measured", ALONE_AND_COMMUNICATES if communicates else ALONE)

    def _of_averages(self, status: Status, reason: str) -> Outcome:
        """The ranks average their models: that they trained apart until then was intended."""
        replicas, averages = self._replicas, self._averages
        if replicas.left_out:
            status, reason = "not_measured", texts.not_averaged(replicas.left_out, replicas.total)
            if not (averages.shown or averages.mixed):
                return not_measured(reason)
        return averages.outcome(status, reason, self._reported_apart, self._reported_other)

    def _of_copies(self) -> Outcome:
        replicas = self._replicas
        return finding(
            "warning",
            "What the ranks all-reduce is not what they step on",
            f"In the last {counted(self._copies, 'window')}, the loop all-reduced as many numbers "
            "before the step as the gradients have, but each rank stepped on the gradients that it "
            f"computed. {texts.drift(replicas.drifted, replicas.total)}. A copy of the gradients "
            "that is not copied back does this. If it is for a log, and each rank is meant to "
            "train its own model, or the ranks average their models later, it is intended.",
            texts.FIX_COPIES,
            windows=self._copies,
            parameters=replicas.listed(replicas.drifted)[:16],
            parameters_total=replicas.total,
        )

    def _difference(self, facts: StepFacts, combined: ManualAllReduce) -> texts.Text:
        replicas = self._replicas
        differ = f"{texts.share(replicas.apart, replicas.total)} between the ranks"
        if combined.scales:
            return texts.scaled(combined.scales)
        if combined.groups:
            return texts.grouped(combined.groups, self._in_groups)
        if combined.early:
            return texts.Text(
                texts.APART,
                f"{differ}: the gradients of the micro-batches after the all-reduce stay on their "
                "rank.",
                texts.FIX_BY_HAND,
            )
        if self._started_apart:
            return texts.Text(
                "The replicas start from different weights",
                f"{differ}, and the ranks differed before the first step. They combine gradients "
                "of different models.",
                texts.FIX_START,
            )
        if combined.partly or norms_differ(facts.records.values()):
            return texts.left_out(
                replicas, _clipped_differently(facts.records), all_reduce_once(facts)
            )
        return texts.Text(
            texts.APART,
            f"{differ}, although the sampled gradients of this step were combined: an earlier step "
            "was different on each rank, the all-reduces are in another order on each rank, or "
            f"something else changes the parameters{texts.rates(facts)}.",
            texts.FIX_BY_HAND,
        )


def _clipped_differently(records: RecordsByRank) -> bool:
    return differ_by([clipping_of_window(r) for r in records.values()], SAME)
