"""The wire format, version 1: the records that a training process sends, one JSON object per line.

A batch is newline-delimited JSON. Its first line is the run record, so that each batch, spool file
and export can be read alone. A fact that was not measured is omitted, and ``missing`` names it with
the reason: an absent value never means zero. Floats without a JSON representation are the strings
``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, as in the JSON mapping of Protocol Buffers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

WIRE_VERSION = 1

Reduction = Literal["none", "mean", "sum"]
Op = Literal[
    "clip_norm",
    "clip_value",
    "unscale",
    "scaler_step",
    "update",
    "schedule",
    "new_scaler",
    "load_state",  # of the optimizer: the script resumes from a checkpoint
]

CodeRole = Literal[
    Op,
    "backward",
    "scaled_backward",  # of a loss that a GradScaler scaled
    "idle_backward",  # to the parameters of an optimizer that never stepped, beside this one
    "loss",
    "step",
    "zero_grad",
    "batches",  # a loop over a DataLoader begins
    "new_schedule",  # an LR scheduler is created
]


@dataclass(eq=False, repr=False)
class CodeLocation:
    """A call or a statement in the script's code, seen in the first windows of an optimizer.

    Lines and columns count from 1; the end column is the one after the last character.
    """

    role: CodeRole
    file: str  # relative to the working directory or the repository; "In [3]" is a notebook's cell
    line: int
    end_line: int | None = None
    column: int | None = None  # from Python 3.11 on
    end_column: int | None = None
    function: str = ""  # that contains it; empty at the top of a file
    via: str = ""  # the package that makes the call for the script, if it is not PyTorch
    first: int | None = None  # the line number of the first line of ``source``
    source: list[str] = field(default_factory=list)  # the lines around it, without secrets


@dataclass(eq=False, repr=False)
class Term:
    """One loss node of one micro-batch.

    ``weight`` is the gradient of one counted token's loss, including the loss scale: upstream
    gradient / tokens for a mean, the upstream gradient for a sum, the average over tokens for
    ``none`` (a vector of losses). For such a vector, ``weight_min`` and ``weight_max`` are the
    smallest and the largest absolute value, and ``weight_size`` is their average, if the weights
    have both signs.
    """

    # of the autograd node: NllLossBackward0; after "NllLoss:", of a cross entropy of class indices
    kind: str
    reduction: Reduction
    tokens: int | None = None  # counted tokens: not ignored, not masked to zero
    size: int | None = None  # elements of the target, including ignored ones
    rows: int | None = None  # size of the first dimension of the target
    classes: int | None = None  # of a cross entropy of class indices
    samples: int | None = None  # of a flattened target, if the graph proves their number
    positions: int | None = None  # product of the target dimensions except the last
    weight: float | None = None
    weight_min: float | None = None
    weight_max: float | None = None
    weight_size: float | None = None
    class_weight: float | None = None  # sum of the class weights of the tokens, if any
    valid: int | None = None  # of a cross entropy of each token: targets that are not ignored
    ignored: int | None = None  # the class that a cross entropy ignores, if it is not -100
    smoothed: int | None = None  # positions that a label smoothing by hand beside it counts
    undivided: bool | None = None  # no division between the root of backward and this term
    # what each division in between divides by, that nearest to the root first; 0: it is not read
    divisors: list[float] = field(default_factory=list)
    coefficient: float | None = None  # product of constant factors between the root and this term
    outer_coefficient: float | None = None  # of several such factors, that nearest to the root
    # of the last projection, if there are several cross entropies; of the task, if it is alone
    head: int | None = None
    logits: int | None = None  # number of the projection that computed them; chunks share it
    module: str | None = None  # from whose output alone the loss is computed, if there are several
    elements: int | None = None  # under the outermost reduction, where that is not the loss itself
    element_weight: float | None = None  # the gradient of one of them, including the loss scale
    of: str | None = None  # the loss node inside, if the counted elements are a function of one
    nonlinear: bool = False  # a non-linear function of a scalar is between the root and this term
    function: int | None = None  # the outermost such function: its number in the micro-batch
    function_weight: float | None = None  # the gradient that arrives at it, with the loss scale
    penalty: bool = False  # a function of parameters alone
    compares: bool = False  # the examples of the micro-batch with each other, in a matrix of pairs
    averaged: int | None = None  # rows of which each element is a function of the mean
    again: bool = False  # the same loss, not one like it, was in the backward before, too
    part: int | None = None  # the only input with a gradient, from 0, of a concatenation below it
    parts: int | None = None  # all inputs of that concatenation
    beside_parts: int = 0  # elements of the largest parameter with a gradient by another way, too
    # what a cross entropy is given, in the first micro-batches: "log_softmax(softmax)", "linear"
    input: str | None = None
    inferred: str | None = None  # how the reduction of a hidden graph was found, and how sure it is
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class MicroBatch:
    """One outermost backward call."""

    number: int = 0  # 1, 2, ... in this process; several optimizers may share one
    loss: float | None = None  # value of the root of backward, including the loss scale
    scale: float | None = None  # GradScaler scale of this backward
    scaler: int = 1  # which GradScaler that is: see ``Scaler.ordinal``
    terms: list[Term] = field(default_factory=list)
    collectives: int | None = None  # collectives that ran inside this backward
    backward_ms: float | None = None
    fresh: bool | None = None  # the gradients were absent or zero before it
    # another optimizer has stepped on it, or will: this one zeroed it, or each has one beside this
    claimed: bool = False
    parameters_changed: bool = False  # most of them, since the backward before it in the window
    call: int | None = None  # which call of the script: those of the same lines have one number
    wrapper: Literal["sync", "no_sync", "bypassed"] | None = None  # synchronisation mode
    # of the first of several losses: equal for the same head and operations (``tasks.py``)
    task: int | None = None
    elsewhere: int = 0  # further losses that reach other optimizers only: not in ``terms``
    relayed: bool = False  # it started from gradients that were passed in, and reached no loss
    reaches_input: bool = False  # it gave a gradient to a leaf that is no parameter
    rescaled: float | None = None  # the factor on the gradients between the last backward and it
    # of all-reduces inside the first backward: 0 if they add up different values, else by what
    # they multiply equal ones; and what their autograd functions multiply the sums by, unless that
    # is 1 for all: see ``sums_of`` of ``capture/open_parts``
    sums: list[float] = field(default_factory=list)
    sum_scales: list[float] = field(default_factory=list)
    fingerprint: float | None = None  # of the loss targets; equal for equal data
    constant_target: bool | None = None  # constant or consecutive numbers as targets
    consecutive_target: bool = False  # of the two, consecutive: the targets of a contrastive loss
    # of accumulated gradients, after the backward before and when this began, if collectives ran
    samples: Samples | None = None
    without_gradient: float | None = None  # of the first losses: numbers and detached tensors
    # L2 norm of what this backward alone added to the sampled gradients, including the loss scale
    sample_norm: float | None = None
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class Event:
    """One call of the training loop inside the window, in order; ``own`` if on this optimizer.

    ``factor`` is the factor on the gradients between the last backward and this call, and ``rest``
    the one on the clipped values between a clip by value and the step.
    """

    op: Op
    after: int = 0  # micro-batches of the window that ran before it
    own: bool = True
    scaler: int = 1  # which GradScaler was called: see ``Scaler.ordinal``
    limit: float | None = None  # clipping: the maximum norm or value
    norm: float | None = None  # clipping by norm: the total norm before it
    factor: float | None = None
    rest: float | None = None
    # a step of ReduceLROnPlateau that waits for fewer than 50 calls: what it was given, and which
    # values it takes for better ones, unless the optimizer maximises
    metric: float | None = None
    mode: Literal["min", "max"] | None = None


@dataclass(eq=False, repr=False)
class Scaler:
    """State of the GradScaler that stepped this optimizer, at the step."""

    ordinal: int  # 1, 2, ...: each GradScaler object has its own
    scale: float | None = None
    tracker: int | None = None  # steps since the scale last changed
    loaded: bool = False  # its state was loaded from a checkpoint
    unused: bool = False  # no backward started from some loss scaled since the last update


@dataclass(eq=False, repr=False)
class Replaced:
    """An earlier optimizer of the same parameters, which had stepped before this one did."""

    optimizer: int
    steps: int  # that it had made
    scaler: Scaler | None = None  # at its last step
    # optimizers in a row, this one included, that began with an empty state after as many steps of
    # the one before, which had a state: of the same class, settings and parameters, whose values
    # nothing had changed since
    in_a_row: int = 0
    horizon: float | None = None  # steps that the longest average of its state reaches back
    lr: float | None = None  # its rate at its last step, if it has one parameter group


@dataclass(eq=False, repr=False)
class Resumed:
    """What the script loaded before the first step of an optimizer."""

    loaded: bool = False  # the state of the optimizer; the next five are of it
    trained: bool = False  # it has values of parameters, as one has that stepped
    steps: int | None = None
    lr: float | None = None  # of its first parameter group
    under_schedule: bool = False  # an LR schedule had set the learning rates
    moved: bool = False  # it had stepped, and the rate is not that at the beginning of its schedule
    schedule: int | None = None  # the step of its LR schedule, if the state of that was loaded
    empty: float | None = None  # steps that its averages reach back, if it begins without them


@dataclass(eq=False, repr=False)
class Samples:
    """The same gradient coordinates of this rank, after a backward and later.

    Later is the step, or the begin of the next backward.
    """

    after_backward: list[float] = field(default_factory=list)
    at_step: list[float] = field(default_factory=list)
    # With those that were cleared between micro-batches; empty if none were.
    with_cleared: list[float] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Replica:
    """Fingerprints of single parameters before the step, to compare with those of other ranks."""

    total: int = 0  # parameters of the optimizer
    indices: list[int] = field(default_factory=list)  # in the order of the parameter groups, from 0
    fingerprints: list[float] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    # without wrappers; "parameter 3": not known. Sent at the first measurement of an optimizer.
    names: list[str] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Layers:
    """Gradients, parameters and updates of the layers that are trained, before and at a step.

    A layer is a parameter; of more than 512 parameters, those of one module. All lists have an
    entry for each layer, in the order of the model. RMS is the root of the mean square of its
    elements on this rank, to three digits.
    """

    parameters: int = 0  # that require a gradient
    frozen: int = 0  # that do not, and that the optimizer holds
    names: list[str] = field(default_factory=list)  # without wrappers; "parameter 3": not known
    sizes: list[float] = field(default_factory=list)  # elements on this rank
    gradient: list[float | None] = field(default_factory=list)  # RMS; null: it has no gradient
    parameter: list[float] = field(default_factory=list)  # RMS
    update: list[float | None] = field(default_factory=list)  # RMS, from at most 64 coordinates
    # layers (from 0) without a gradient now, of an earlier one of which the optimizer has state
    earlier: list[int] = field(default_factory=list)
    observed: int = 0  # steps of this process at which ``untrained`` was followed, with this one
    # layers (from 0) that had no gradient, or one of exactly 0, at each of them
    untrained: list[int] = field(default_factory=list)
    frozen_zeros: dict[str, str] = field(default_factory=dict)  # of these: matrix of 0 beside it
    # factor of the weight decay of each layer, if there is any and the optimizer is PyTorch's own:
    # of the parameter, as it is added to the gradient
    decay: list[float] = field(default_factory=list)
    decoupled: bool = False  # instead, as the step subtracts it from the parameter
    # of parameters in half precision, if the optimizer is PyTorch's own: sampled coordinates that
    # have a gradient other than 0, and those of them that the step did not change
    rounded: int = 0
    unmoved: int = 0
    single: bool = False  # these are of float32: no parameter is in half precision, all rates tiny
    training: int = 0  # modules of dropout and batch norm in training mode, of 64 at most
    evaluating: list[str] = field(default_factory=list)  # classes of those in evaluation mode


@dataclass(eq=False, repr=False)
class Unheld:
    """Parameters that have gradients, that no optimizer holds and nothing changes."""

    count: int = 0
    elements: float = 0.0  # of those that are named
    names: list[str] = field(default_factory=list)  # of the first 64
    # positions in ``names`` of those in a Python list or dictionary, which is not registered
    listed: list[int] = field(default_factory=list)
    # and of those that did not require a gradient earlier
    unfrozen: list[int] = field(default_factory=list)
    # and of those in no model of the optimizer's parameters, as those of a loss function
    apart: list[int] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class LeftOpen:
    """What the process left unfinished: backwards that no step followed, or an LR schedule."""

    backwards: int = 0
    zeroed: int = 0  # times that the gradients were zeroed in between
    nonfinite: int = 0  # of the backwards, with a loss that was not finite
    scaled: int = 0  # of the backwards, with a loss scale
    norms: int = 0  # measured by clipping
    nonfinite_norms: int = 0
    planned: int = 0  # steps of a schedule that ended long before its plan; 0 if there is none
    scheduled: int = 0  # that it made
    trained: int = 0  # micro-batches of all windows, at most
    inputs: int = 0  # of the backwards, that are searched and give a gradient to an input
    again: bool = False  # all backwards are of lines whose backwards were stepped on before
    warmup: int = 0  # of the plan, which ended before it
    resumed: int = 0  # of the plan, steps that the optimizer had made where its state was loaded
    idle: str = ""  # class of an optimizer that never stepped, if the backwards are of that one
    names: list[str] = field(default_factory=list)  # of its parameters with gradients, the first 64
    stopped: bool = False  # an exception is known to have ended the process, or a notebook's cell


@dataclass(eq=False, repr=False)
class StepRecord:
    """One optimizer step of one rank."""

    type: ClassVar[str] = "step"

    optimizer: int  # 0, 1, ... in the order of their first steps
    step: int  # 1, 2, ... of this optimizer
    time: float  # seconds since the epoch, on the training machine
    micro_batches: list[MicroBatch] = field(default_factory=list)
    norm: float | None = None  # global L2 norm of the gradients at the step
    # on the gradients between the last backward and the step, with clipping and unscaling
    post_factor: float | None = None
    changed: bool = False  # the gradients were changed after backward, and not by one factor
    events: list[Event] = field(default_factory=list)
    scaler: Scaler | None = None
    replaced: Replaced | None = None  # at the first step
    resumed: Resumed | None = None  # the same
    grad_scale: float | None = None  # the divisor that a fused optimizer applies
    lr: float | None = None  # of the first parameter group
    lrs: list[float] = field(default_factory=list)  # of all parameter groups, if there are several
    rate_moves: int = 0  # times that the first rate moved between two of the micro-batches
    scheduled: int | None = None  # the step that an LR schedule is at
    schedule_total: int | None = None  # the step at which it ends, if it is read
    # steps of a schedule of an earlier optimizer that never stepped, in place of which this one
    # was created again, at one rate; the rate of the earlier one
    elsewhere: int | None = None
    rate_elsewhere: float | None = None
    group_norms: list[float] = field(default_factory=list)  # by parameter group, if several
    sharded: bool = False  # each rank holds a shard of the gradients; norms are local
    zero_share: float | None = None  # share of sampled coordinates that are exactly zero
    nonfinite: int | None = None  # parameters whose gradient has a non-finite norm
    update_ratio: float | None = None  # |change| / |value| of sampled parameters, at some steps
    noise: list[float] = field(default_factory=list)  # sampled |G_small|^2, |G_big|^2
    sync: Literal["none", "averaged", "unknown"] = "none"  # reduction of gradients over ranks
    wrapper: Literal["ddp", "fsdp", "fsdp2"] | None = None
    data_group: list[int] = field(default_factory=list)  # ranks with other data, if not all are
    # ranks that hold parts of the same parameters, and compute on the same data
    tensor_group: list[int] = field(default_factory=list)
    pipeline: list[int] = field(default_factory=list)  # ranks whose stages are one model
    # what the wrapper divides the sum of the ranks' gradients by, if not by the number of ranks;
    # several numbers: it divides those of different parameters differently
    divisors: list[float] = field(default_factory=list)
    # in a `Join` context of DDP, whose ranks may have no more data: their sum is divided by the
    # number of all ranks, or of those that have some
    join: Literal["all", "active"] | None = None
    collectives_after: int | None = None  # collectives between the last backward and the step
    # without a wrapper: numbers that the loop all-reduced then, as a multiple of the gradients'
    reduced_share: float | None = None
    unwaited_share: float | None = None  # of the gradients: in all-reduces that nothing waited for
    sync_bytes: int | None = None  # gradient bytes that DDP sends in one synchronisation
    outside: int | None = None  # parameters of the optimizer outside the wrapped model
    excluded: int | None = None  # inside it, and the script lets DDP ignore them
    samples: Samples | None = None  # if the reduction over ranks was not observed
    # the samples after the last backward are from before hooks that may combine the gradients: a
    # comm hook of DDP, or hooks of the parameters
    before_hooks: bool = False
    exchanges: bool = False  # an all-to-all ran in a backward of it, as of tokens for experts
    own_sums: bool = False  # sums of what this rank's backwards added, without other ranks'
    shares: Samples | None = None  # of the model that is shared out: ``observers/ranks/shares.py``
    own_shares: bool = False  # from before hooks that may combine gradients inside backward
    shared_model: float | None = None  # fingerprint of its parameters there
    # if these change: sampled parameters after the last step and before this one; of an outer
    # optimizer, which steps on the changes of a model: the change on this rank, and its gradient
    models: Samples | None = None
    averaging: bool = False  # something else than the optimizer changes its parameters, too
    parameters: float | None = None  # fingerprint of sampled parameters before the step
    replica: Replica | None = None  # if the ranks may hold replicas, on some steps
    layers: Layers | None = None  # at a few steps
    unheld: Unheld | None = None  # at some of them
    sampler: Literal["random", "sequential"] | None = None  # of the last DataLoader iterated
    batches: int | None = None  # from the only training DataLoader since the last step
    batch_size: int | None = None  # samples per batch
    # batches from each training DataLoader since the last step, if several delivered any
    loader_batches: list[int] = field(default_factory=list)
    moved: bool = False  # gradients were stored in other buffers between micro-batches
    repeat: bool = False  # no backward since the last step; its gradients, up to a factor
    empty: bool = False  # no parameter has a gradient at the step
    # if no parameter of the optimizer has one, and all were looked at: those that require one
    trainable: int | None = None
    skipped: bool = False  # the GradScaler found a non-finite gradient and did not step
    closure: bool = False  # its backwards ran inside ``step(closure)``
    maximises: bool = False  # all parameter groups have ``maximize=True``
    accumulating: bool = False  # Accelerate states that the window has not ended
    alone: bool = False  # no other optimizer has stepped between two steps of this one
    # an optimizer (its number) that stepped on each micro-batch of this window alone
    stepped_each: int | None = None
    left_open: LeftOpen | None = None  # the process ended, and no step was taken
    half_precision: bool = False  # loss and weights have fp16 or bf16 rounding errors
    by_hand: bool = False  # no optimizer of PyTorch made the update; its gradient may be gone
    # by hand: c, if the parameters changed by -c times the gradient after the last backward
    step_size: float | None = None
    dropped: int = 0  # records that this rank has dropped so far
    next: int | None = None  # the next recorded step, if sampling skips the steps before it
    code: list[CodeLocation] = field(default_factory=list)  # new since the last record
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class RunRecord:
    """The run and rank that sent a batch: the first line of every batch."""

    type: ClassVar[str] = "run"

    run: str  # id of the run, equal on all its ranks
    name: str
    rank: int = 0
    world_size: int = 1
    project: str = "default"
    started: float = 0.0
    optimizers: list[str] = field(default_factory=list)  # class names, by index of the optimizer
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)  # versions, host, command
    contract: Literal["token", "sequence", "sample"] | None = None
    declared_scale: float | None = None  # an intended balance other than 1
    v: int = WIRE_VERSION


@dataclass(eq=False, repr=False)
class EvalRecord:
    """Evaluation metrics that the training script reported."""

    type: ClassVar[str] = "eval"

    step: int
    time: float
    values: dict[str, float] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class CheckpointRecord:
    """The training script saved a checkpoint after an optimizer step."""

    type: ClassVar[str] = "checkpoint"

    step: int
    time: float
    path: str = ""  # as the script reported it


@dataclass(eq=False, repr=False)
class HeartbeatRecord:
    """Sent every few seconds while the process runs and no optimizer step ends."""

    type: ClassVar[str] = "heartbeat"

    time: float
    since_step: float  # seconds since the last step ended, or since the first backward
    backwards: int = 0  # micro-batches since that time


@dataclass(eq=False, repr=False)
class EndRecord:
    """The process ended normally; ``steps`` is the number of steps of each optimizer."""

    type: ClassVar[str] = "end"

    time: float
    steps: list[int] = field(default_factory=list)


Record = RunRecord | StepRecord | EvalRecord | CheckpointRecord | HeartbeatRecord | EndRecord
