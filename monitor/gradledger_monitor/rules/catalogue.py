"""All rules, in the order of the decision tree."""

from __future__ import annotations

from gradledger_monitor.rules.batch.changed_without_lr import ChangedWithoutLr
from gradledger_monitor.rules.clip.after_step import AfterStep
from gradledger_monitor.rules.clip.always_engaged import AlwaysEngaged
from gradledger_monitor.rules.clip.before_division import BeforeDivision
from gradledger_monitor.rules.clip.local_norm import LocalNorm
from gradledger_monitor.rules.data.same_order_each_epoch import SameOrderEachEpoch
from gradledger_monitor.rules.ddp.duplicate_data import DuplicateData
from gradledger_monitor.rules.ddp.missing_no_sync import MissingNoSync
from gradledger_monitor.rules.ddp.never_synced import NeverSynced
from gradledger_monitor.rules.ddp.replica_drift import ReplicaDrift
from gradledger_monitor.rules.ddp.uneven_microbatches import UnevenMicrobatches
from gradledger_monitor.rules.ddp.wrong_microbatch_synced import WrongMicrobatchSynced
from gradledger_monitor.rules.ddp.wrong_model_average import WrongModelAverage
from gradledger_monitor.rules.eval.diverging import Diverging
from gradledger_monitor.rules.loop.clip_every_microbatch import ClipEveryMicrobatch
from gradledger_monitor.rules.loop.discarded_microbatches import DiscardedMicrobatches
from gradledger_monitor.rules.loop.double_step import DoubleStep
from gradledger_monitor.rules.loop.dropped_windows import DroppedWindows
from gradledger_monitor.rules.loop.evaluation_mode import EvaluationMode
from gradledger_monitor.rules.loop.grads_not_zeroed import GradsNotZeroed
from gradledger_monitor.rules.loop.losses_added_again import LossesAddedAgain
from gradledger_monitor.rules.loop.never_stepped import NeverStepped
from gradledger_monitor.rules.loop.no_gradients import NoGradients
from gradledger_monitor.rules.loop.optimizer_recreated import OptimizerRecreated
from gradledger_monitor.rules.loop.step_every_microbatch import (
    StepEveryMicrobatch as LoopStepEveryMicrobatch,
)
from gradledger_monitor.rules.loop.unheld_parameters import UnheldParameters
from gradledger_monitor.rules.loop.zeroed_before_step import ZeroedBeforeStep
from gradledger_monitor.rules.loop.zeroed_every_microbatch import ZeroedEveryMicrobatch
from gradledger_monitor.rules.loss.diverging import Diverging as LossDiverging
from gradledger_monitor.rules.loss.maximised import Maximised
from gradledger_monitor.rules.loss.no_targets import NoTargets
from gradledger_monitor.rules.loss.nonfinite import Nonfinite as LossNonfinite
from gradledger_monitor.rules.loss.on_some_ranks import OnSomeRanks
from gradledger_monitor.rules.loss.part_without_gradient import PartWithoutGradient
from gradledger_monitor.rules.loss.wrong_input import WrongInput
from gradledger_monitor.rules.norm.dead_layer import DeadLayer
from gradledger_monitor.rules.norm.exploding import Exploding
from gradledger_monitor.rules.norm.gradient_ends import GradientEnds
from gradledger_monitor.rules.norm.lost_updates import LostUpdates
from gradledger_monitor.rules.norm.nonfinite import Nonfinite
from gradledger_monitor.rules.norm.spike import Spike
from gradledger_monitor.rules.norm.vanishing import Vanishing
from gradledger_monitor.rules.norm.vanishing_by_depth import VanishingByDepth
from gradledger_monitor.rules.norm.weight_decay import WeightDecay
from gradledger_monitor.rules.reduction.balance_off import BalanceOff
from gradledger_monitor.rules.reduction.double_division import DoubleDivision
from gradledger_monitor.rules.reduction.missing_division import MissingDivision
from gradledger_monitor.rules.reduction.partial_window import PartialWindow
from gradledger_monitor.rules.reduction.token_weights_unequal import TokenWeightsUnequal
from gradledger_monitor.rules.reduction.unnormalised_sum import UnnormalisedSum
from gradledger_monitor.rules.reduction.world_size import WorldSize
from gradledger_monitor.rules.reduction.wrong_denominator import WrongDenominator
from gradledger_monitor.rules.rule import HistoryRule, Rule
from gradledger_monitor.rules.run.stalled import Stalled
from gradledger_monitor.rules.scaler.all_grads_zero import AllGradsZero
from gradledger_monitor.rules.scaler.clip_before_unscale import ClipBeforeUnscale
from gradledger_monitor.rules.scaler.collapse import Collapse
from gradledger_monitor.rules.scaler.double_unscale import DoubleUnscale
from gradledger_monitor.rules.scaler.missing_update import MissingUpdate
from gradledger_monitor.rules.scaler.reset import Reset
from gradledger_monitor.rules.scaler.skipped_steps import SkippedSteps
from gradledger_monitor.rules.scaler.step_bypassed import StepBypassed
from gradledger_monitor.rules.scaler.two_scalers import TwoScalers
from gradledger_monitor.rules.scaler.unscale_mid_window import UnscaleMidWindow
from gradledger_monitor.rules.scaler.unscaled_backward import UnscaledBackward
from gradledger_monitor.rules.scaler.update_between_optimizers import UpdateBetweenOptimizers
from gradledger_monitor.rules.scaler.update_per_microbatch import UpdatePerMicrobatch
from gradledger_monitor.rules.schedule.of_another_optimizer import OfAnotherOptimizer
from gradledger_monitor.rules.schedule.only_warmup import OnlyWarmup
from gradledger_monitor.rules.schedule.planned_in_other_steps import PlannedInOtherSteps
from gradledger_monitor.rules.schedule.plateau_mode import PlateauMode
from gradledger_monitor.rules.schedule.plateau_of_one_batch import PlateauOfOneBatch
from gradledger_monitor.rules.schedule.resumed_in_part import ResumedInPart
from gradledger_monitor.rules.schedule.zero_lr import ZeroLr
from gradledger_monitor.rules.scheduler.step_every_microbatch import (
    StepEveryMicrobatch as SchedulerStepEveryMicrobatch,
)
from gradledger_monitor.rules.scheduler.stepped_on_skip import SteppedOnSkip

RULES: tuple[type[Rule], ...] = (
    LossNonfinite,
    Nonfinite,
    Maximised,
    LossDiverging,
    PartWithoutGradient,
    OnSomeRanks,
    NoTargets,
    WrongInput,
    Stalled,
    MissingDivision,
    DoubleDivision,
    WorldSize,
    UnnormalisedSum,
    WrongDenominator,
    PartialWindow,
    TokenWeightsUnequal,
    BalanceOff,
    TwoScalers,
    StepBypassed,
    ClipBeforeUnscale,
    UnscaledBackward,
    DoubleUnscale,
    UpdatePerMicrobatch,
    UnscaleMidWindow,
    UpdateBetweenOptimizers,
    MissingUpdate,
    Reset,
    Collapse,
    SkippedSteps,
    AllGradsZero,
    SteppedOnSkip,
    NeverSynced,
    WrongMicrobatchSynced,
    MissingNoSync,
    ReplicaDrift,
    WrongModelAverage,
    UnevenMicrobatches,
    DuplicateData,
    SameOrderEachEpoch,
    GradsNotZeroed,
    ZeroedEveryMicrobatch,
    ZeroedBeforeStep,
    LossesAddedAgain,
    NoGradients,
    NeverStepped,
    UnheldParameters,
    EvaluationMode,
    LoopStepEveryMicrobatch,
    DoubleStep,
    ClipEveryMicrobatch,
    AfterStep,
    DiscardedMicrobatches,
    DroppedWindows,
    OptimizerRecreated,
    SchedulerStepEveryMicrobatch,
    PlannedInOtherSteps,
    PlateauMode,
    PlateauOfOneBatch,
    ResumedInPart,
    OnlyWarmup,
    OfAnotherOptimizer,
    ZeroLr,
    ChangedWithoutLr,
    Spike,
    WeightDecay,
    LostUpdates,
    Vanishing,
    Exploding,
    VanishingByDepth,
    DeadLayer,
    GradientEnds,
    BeforeDivision,
    LocalNorm,
    AlwaysEngaged,
)

HISTORY_RULES: tuple[type[HistoryRule], ...] = (Diverging,)
