"""Relative errors of floating point below which two numbers count as equal.

Thresholds of rules are parameters of those rules. The numbers here are bounds of rounding error.
"""

from __future__ import annotations

# Token weights, misallocation and balance, which are sums of fp32 products.
WEIGHT = 1e-3
WEIGHT_HALF = 1e-2  # where the loss is fp16 or bf16

# Gradient samples of one coordinate, taken twice or on two ranks; relative to the largest value
# that could have cancelled. The hooks use the same two numbers (``capture/gradient_probe.py``).
SAMPLE = 1e-3
SAMPLE_HALF = 2e-2  # where the gradients are fp16 or bf16

# The smallest and the largest token weight that a loss gave inside one micro-batch.
INSIDE = 2e-3

# Norms of one gradient, which each rank computes from the same numbers.
NORM = 1e-5
REPLICAS = 1e-6  # of parameters on several ranks, where replicas are equal bit by bit
