"""Fused cross entropies whose kernels need a GPU: their real source, with the kernel replaced.

What is replaced, and by what, is in the docstring of each function.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor


def cut_cross_entropy_on_cpu(patch: pytest.MonkeyPatch) -> None:
    """``cut_cross_entropy.cce``: its three Triton kernels, by the same computation in PyTorch."""
    cce: Any = pytest.importorskip("cut_cross_entropy.cce")

    def selected(e: Tensor, valids: Tensor | None) -> Tensor:
        return e if valids is None else e[valids.long()]

    def lse(e: Tensor, c: Tensor, valids: Any, softcap: Any, return_logit_avg: bool) -> Any:
        logits = selected(e, valids) @ c.T
        result = logits.logsumexp(-1)
        return (result, logits.mean(0)) if return_logit_avg else result

    def negative_dot(
        e: Tensor, c: Tensor, targets: Tensor, shift: bool, valids: Any, softcap: Any, dtype: Any
    ) -> Tensor:
        rows, wanted = selected(e, valids), selected(targets, valids)
        return -(rows * c[wanted]).sum(-1).to(dtype)

    def backward(
        grad: Tensor, e: Tensor, c: Tensor, lse: Tensor, valids: Any, *_: Any, **more: Any
    ) -> tuple[Tensor, Tensor]:
        rows, wanted = selected(e, valids), selected(more["targets"], valids)
        errors = (rows @ c.T - lse[:, None]).exp()
        errors[torch.arange(len(wanted)), wanted] -= 1
        errors = errors * more["grad_scale"] * grad.reshape(-1, 1)
        of_rows = torch.zeros_like(e)
        of_rows[slice(None) if valids is None else valids.long()] = errors @ c
        return of_rows, errors.T @ rows

    patch.setattr(cce, "cce_lse_forward_kernel", lse)
    patch.setattr(cce, "indexed_neg_dot_forward_kernel", negative_dot)
    patch.setattr(cce, "cce_backward_kernel", backward)
    patch.setattr(cce, "sort_logit_avg", lambda average: average.argsort())
