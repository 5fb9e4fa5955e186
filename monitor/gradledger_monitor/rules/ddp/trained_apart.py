"""Why it is not known whether ranks that combine no gradients are meant to train one model."""

from __future__ import annotations

ALONE = (
    "the ranks combine no gradients, and parameters that were equal on all of them differ now: "
    "whether each rank is meant to train its own model is not known"
)

ALONE_AND_COMMUNICATES = (
    "the ranks communicate before the step, but each steps on the gradients that it computed, and "
    "parameters that were equal on all of them differ now: whether each rank is meant to train its "
    "own model, or the loop combined copies of the gradients, is not known"
)

CHANGED = (
    "the ranks combine no gradients, and something besides the optimizer changes their parameters, "
    "which stay different on each rank: whether it limits them, or mixes those of several ranks, "
    "as elastic and gossip averaging do, is not known"
)
NO_LONGER = (
    "the ranks combined their gradients in earlier steps, and do not any more; parameters that "
    "were equal on all of them differ now: whether they are averaged later, as in local SGD, is "
    "not known"
)
OF_ALL_TOKENS = (
    "each rank divides its loss by the tokens of all ranks, or by their mean, and steps on its own "
    "gradients; parameters that were equal on all of them differ now: whether the loop leaves out "
    "the all-reduce of the gradients, or the ranks average their models later, is not known"
)
OF_PARTS = (
    "the optimizers of the ranks hold different parameters, and the ranks combine no gradients: "
    "whether the parameters of one rank are meant to be trained on the data of that rank alone is "
    "not known"
)
SHARED_OUT = (
    "the optimizers of the ranks hold different parameters, as in ZeRO: whether each rank receives "
    "what the others have updated is not known"
)
