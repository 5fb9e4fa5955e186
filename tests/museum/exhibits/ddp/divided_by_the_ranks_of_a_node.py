"""Gradients are added up in each node, then over the nodes, and divided by the ranks of a node."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, all_ranks, text, token_loss

OF_NODE = 2  # ranks

with all_ranks() as rank:
    nodes = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    leaders = dist.new_group([0, 2])
    node, leader = nodes[rank // OF_NODE], rank // OF_NODE * OF_NODE
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        for parameter in model.parameters():
            dist.reduce(parameter.grad, leader, group=node)
            if rank == leader:
                dist.all_reduce(parameter.grad, group=leaders)
            dist.broadcast(parameter.grad, leader, group=node)
            parameter.grad /= OF_NODE
        optimizer.step()
        optimizer.zero_grad()
