"""Names of autograd nodes, by what the walk does at them. A name that is not here is not linear."""

from __future__ import annotations

from gradledger.records import Reduction

CTC_LOSS = "CtcLossBackward0"
CTC_LOSSES = frozenset({CTC_LOSS, "CudnnCtcLossBackward0"})

# Losses that PyTorch implements as one node.
LOSS_NODES = frozenset(
    {
        "NllLossBackward0",
        "NllLoss2DBackward0",
        "MseLossBackward0",
        "SmoothL1LossBackward0",
        "HuberLossBackward0",
        "BinaryCrossEntropyBackward0",
        "BinaryCrossEntropyWithLogitsBackward0",
        "KlDivBackward0",
        "SoftMarginLossBackward0",
        "MultiMarginLossBackward0",
        "MultilabelMarginLossBackward0",
    }
    | CTC_LOSSES
)

# Nodes that pick one log-probability per token: a hand-written cross entropy.
PICKS = frozenset({"GatherBackward0", "IndexBackward0"})

# The name of a cross entropy against probabilities: sum, product and log_softmax.
SOFT_CROSS_ENTROPY = "SoftCrossEntropy"

# The name of a divergence between probabilities: of several nodes since PyTorch 2.13.
DIVERGENCE = "KlDivergence"

# The name of a sum or mean of the log-probabilities of all classes: label smoothing by hand.
SMOOTHING = "LabelSmoothing"

# Reductions: a hand-written loss ends in one of these.
REDUCTIONS: dict[str, Reduction] = {
    "MeanBackward0": "mean",
    "MeanBackward1": "mean",
    "SumBackward0": "sum",
    "SumBackward1": "sum",
    "NansumBackward0": "sum",  # of a nanmean, too
}

# Norms: a penalty may end in one of these.
NORMS = frozenset(
    {"LinalgVectorNormBackward0", "NormBackward0", "NormBackward1", "LinalgMatrixNormBackward0"}
)

# The end of the name of a part of a function that TorchScript has optimized: its node does not
# show what it computes.
SCRIPTED = "DifferentiableGraphBackward"

LOG_SOFTMAX = "LogSoftmaxBackward0"
SOFTMAXES = frozenset({LOG_SOFTMAX, "SoftmaxBackward0"})
LOGSUMEXP = "LogsumexpBackward0"

# Nodes that keep the order of elements.
VIEWS = frozenset(
    {"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "AliasBackward0"}
    | {"SqueezeBackward0", "SqueezeBackward1", "SqueezeBackward2", "UnsqueezeBackward0"}
    | {"ToCopyBackward0", "CloneBackward0"}
)
RESHAPES = VIEWS | {"TransposeBackward0", "PermuteBackward0"}

# DDP's, around its outputs: with a static graph in the first iteration only
PASSED_ON = "_DDPSinkBackward"
# and FSDP2's, around the inputs of its modules: output i is input i.
PASSED_ON_IN_ORDER = frozenset({PASSED_ON, "RegisterPostBackwardFunctionBackward"})

ASSIGNMENT = "torch::autograd::CopySlices"  # to a part of a tensor, in place
# Nodes between the assignments to one tensor.
PARTS = frozenset({ASSIGNMENT, "AsStridedBackward0", "SelectBackward0", "SliceBackward0"})

# Nodes that pass some elements on, each at most as often as it occurs, or the same one repeatedly.
SELECTIONS = frozenset(
    {"SliceBackward0", "SelectBackward0", "IndexBackward0", "IndexSelectBackward0"}
    | {"GatherBackward0", "TakeBackward0", "MaskedSelectBackward0", "TopkBackward0"}
    | {"SortBackward0", "MaskedFillBackward0", "MaskedFillBackward1", "WhereBackward0"}
    | {"IndexPutBackward0", "IndexPutImplBackward0", ASSIGNMENT}
    | {"SplitBackward0", "SplitWithSizesBackward0", "UnbindBackward0", "ExpandBackward0"}
    | {"ScatterBackward0", "ScatterAddBackward0", "IndexAddBackward0", "ConstantPadNdBackward0"}
    | {
        "AsStridedBackward0",
        "FlipBackward0",
        "RollBackward0",
        "RepeatBackward0",
        "TrilBackward0",
        "TriuBackward0",
    }
)

# Linear if only one of their inputs is in the graph, and is not the divisor.
PRODUCTS = frozenset({"MulBackward0", "MulBackward1", "DivBackward0", "DivBackward1"})
PRODUCT_OF_VECTORS = "DotBackward0"
SUMS = frozenset({*REDUCTIONS, PRODUCT_OF_VECTORS})
ADDITIONS = frozenset(
    {"AddBackward0", "AddBackward1", "SubBackward0", "SubBackward1"}
    | {"RsubBackward0", "RsubBackward1", "NegBackward0"}
)
SUBTRACTIONS = frozenset({"SubBackward0", "SubBackward1", "RsubBackward0", "RsubBackward1"})
JOINS = frozenset({"CatBackward0", "StackBackward0"})
# What guards a loss against values that are not finite or too large: it passes the loss on, or a
# constant.
GUARDS = frozenset(
    {"NanToNumBackward0", "ClampBackward0", "ClampBackward1"}
    | {"ClampMinBackward0", "ClampMinBackward1", "ClampMaxBackward0", "ClampMaxBackward1"}
)
LINEAR = RESHAPES | SELECTIONS | SUMS | ADDITIONS | JOINS

# Nodes that a loop adds between its loss and backward, for K, the world size, a weight, or the loss
# scale.
SCALINGS = frozenset({"DivBackward0", "MulBackward0", "ToCopyBackward0"})

# Nodes that compute logits.
PROJECTIONS = frozenset({"AddmmBackward0", "MmBackward0", "BmmBackward0", "ConvolutionBackward0"})

# Nodes of a layer: one of their inputs is data, or an activation.
LAYERS = PROJECTIONS | {"BaddbmmBackward0", "EmbeddingBackward0", "MvBackward0"}

PARAMETER = "torch::autograd::AccumulateGrad"

# Of a weight that is a direction and a norm, the direction first.
WEIGHT_NORM = "WeightNormInterfaceBackward0"

# Nodes of a model: there is no loss below them.
MODEL_NODES = (
    LAYERS
    | SOFTMAXES
    | {
        PARAMETER,
        "NativeLayerNormBackward0",
        "NativeBatchNormBackward0",
        "CudnnBatchNormBackward0",
        "ScaledDotProductFlashAttentionForCpuBackward0",
        "CompiledFunctionBackward",
    }
)
