"""apex: its real source, with its CUDA kernels replaced by the same computation in PyTorch.

apex is on no package index. ``GRADLEDGER_TEST_APEX`` is the folder of a checkout, which holds the
package ``apex``; without it, the tests of apex are skipped.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

FOLDER = os.environ.get("GRADLEDGER_TEST_APEX", "")


def import_apex(name: str, patch: pytest.MonkeyPatch) -> Any:
    """A module of apex, whose extensions are those below."""
    for extension, functions in (("xentropy_cuda", (forward, backward)), ("amp_C", _KERNELS)):
        module = ModuleType(extension)
        vars(module).update({function.__name__: function for function in functions})
        patch.setitem(sys.modules, extension, module)
    patch.syspath_prepend(FOLDER)
    return importlib.import_module(name)


def forward(
    logits: Tensor, labels: Tensor, smoothing: float, half_to_float: bool
) -> tuple[Tensor, Tensor]:
    """``xentropy_cuda.forward``: the losses of all rows, and what backward needs."""
    targets = labels.clamp_min(0)  # the kernel reads what is not there, and the loss is masked
    losses = F.cross_entropy(logits.float(), targets, label_smoothing=smoothing, reduction="none")
    return losses.to(torch.float32 if half_to_float else logits.dtype), logits.logsumexp(-1)


def backward(
    upstream: Tensor, logits: Tensor, max_log_sum_exp: Tensor, labels: Tensor, smoothing: float
) -> Tensor:
    """``xentropy_cuda.backward``."""
    errors = (logits - max_log_sum_exp[:, None]).exp() - smoothing / logits.shape[-1]
    targets = labels.clamp_min(0)[:, None]
    errors.scatter_add_(-1, targets, torch.full_like(errors[:, :1], smoothing - 1))
    return errors * upstream[:, None]


Lists = Sequence[Sequence[Tensor]]  # of gradients, parameters and the state


def multi_tensor_sgd(
    chunk: int, overflow: Tensor, lists: Lists, decay: float, momentum: float, dampening: float,
    lr: float, nesterov: bool, first_run: bool, wd_after_momentum: bool, scale: float,
) -> None:  # fmt: skip
    for gradient, parameter, buffer in zip(*lists, strict=True):
        update = gradient.float() * scale + decay * parameter
        if momentum:
            share = 1.0 if first_run else 1 - dampening
            update = buffer.mul_(momentum).add_(update, alpha=share)
        parameter.data.sub_(lr * update)


def multi_tensor_adam(
    chunk: int, overflow: Tensor, lists: Lists, lr: float, beta1: float, beta2: float, eps: float,
    step: int, decoupled: int, bias_correction: int, decay: float,
) -> None:  # fmt: skip
    for gradient, parameter, mean, square in zip(*lists, strict=True):
        mean.lerp_(gradient, 1 - beta1)
        square.lerp_(gradient**2, 1 - beta2)
        of_mean = 1 - beta1**step if bias_correction else 1.0
        of_square = 1 - beta2**step if bias_correction else 1.0
        update = mean / of_mean / ((square / of_square).sqrt() + eps) + decay * parameter
        parameter.data.sub_(lr * update)


def multi_tensor_l2norm(
    chunk: int, overflow: Tensor, lists: Lists, per_tensor: bool
) -> tuple[Tensor, None]:
    norms = [torch.linalg.vector_norm(each) for each in lists[0]]
    return torch.linalg.vector_norm(torch.stack(norms))[None], None


def multi_tensor_lamb(
    chunk: int, overflow: Tensor, lists: Lists, lr: float, beta1: float, beta2: float, eps: float,
    step: int, bias_correction: int, decay: float, averaging: int, decoupled: int, norm: Tensor,
    max_norm: float, use_nvlamb: bool,
) -> None:  # fmt: skip
    clip = float(norm) / max_norm if norm > max_norm else 1.0
    for gradient, parameter, mean, square in zip(*lists, strict=True):
        mean.mul_(beta1).add_(gradient / clip, alpha=1 - beta1 if averaging else 1.0)
        square.lerp_((gradient / clip) ** 2, 1 - beta2)
        update = mean / (1 - beta1**step) / ((square / (1 - beta2**step)).sqrt() + eps)
        update = update + decay * parameter
        ratio = parameter.norm() / update.norm() if decay or use_nvlamb else 1.0
        parameter.data.sub_(lr * ratio * update)


def multi_tensor_adam_capturable(*_: Any) -> None:
    """Not called."""


def multi_tensor_adam_capturable_master(*_: Any) -> None:
    """Not called."""


_KERNELS: tuple[Callable[..., Any], ...] = (
    multi_tensor_sgd,
    multi_tensor_adam,
    multi_tensor_adam_capturable,
    multi_tensor_adam_capturable_master,
    multi_tensor_l2norm,
    multi_tensor_lamb,
)
