"""Each rank has an expert, to which all ranks send tokens: divided as the rest, not added up."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_to_all_single

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks


class Experts(nn.Module):
    """Each rank has another expert, and sends half of its tokens to each of them."""

    def __init__(self, size, rank, ranks):
        super().__init__()
        self.expert = [nn.Linear(size, size) for _ in range(ranks)][rank]

    def forward(self, hidden):
        sent = hidden.contiguous()
        received = all_to_all_single(torch.empty_like(sent), sent)
        answered = self.expert(received).contiguous()
        return hidden + all_to_all_single(torch.empty_like(answered), answered)


with two_ranks() as rank:
    torch.manual_seed(0)
    ranks = dist.get_world_size()
    model = TinyLM()
    model.head = nn.Sequential(Experts(model.head.in_features, rank, ranks), model.head)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for window in text(6, seed=1 + rank, lengths=EVEN):
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        for name, parameter in model.named_parameters():
            if "expert" not in name:
                dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
        optimizer.step()
        optimizer.zero_grad()
