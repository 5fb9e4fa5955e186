"""Two micro-batches are tried again: FSDP2 had not reduced their gradients, which are cleared."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from museum.parts import RAGGED, TinyLM, summed, text, token_loss, two_ranks, valid


def clear_unreduced(model):
    """``zero_grad`` does not reach the gradients that FSDP2 keeps outside ``.grad``."""
    for group in model._get_fsdp_state()._fsdp_param_groups:
        for each in group.fsdp_params:
            each.unsharded_accumulated_grad = each.unsharded_param.grad = None


with two_ranks() as rank:
    torch.manual_seed(0)
    plain = TinyLM().double()
    model = TinyLM()
    model.load_state_dict(plain.state_dict())
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=RAGGED)

    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for attempt in (window[:2], window):
            for i, (ids, labels) in enumerate(attempt):
                model.set_requires_gradient_sync(attempt is window and i + 1 == len(window))
                loss = token_loss(model(ids), labels, "sum") * 2 / tokens
                loss.backward()
            if attempt is not window:
                clear_unreduced(model)
        optimizer.step()
        optimizer.zero_grad()
