"""All experts start with the first matrix of one dense layer, and a second one of their own."""

from itertools import chain

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_to_all_single

from museum.parts import EVEN, VOCABULARY, summed, text, token_loss, two_ranks, valid


def expert(width):
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))


class Routed(nn.Module):
    """Two experts, weighed by a router. Of two ranks, each holds one, to which both send tokens."""

    def __init__(self, own=None, width=16):
        super().__init__()
        self.own = own
        self.embed = nn.Embedding(VOCABULARY, width)
        self.router = nn.Linear(width, 2)
        self.experts = nn.ModuleDict({name: expert(width) for name in "01"})
        if own is not None:
            del self.experts[str(1 - own)]
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids):
        x = torch.tanh(self.embed(ids))
        if self.own is None:
            answers = torch.stack([each(x) for each in self.experts.values()])
        else:
            sent = torch.stack([x, x])
            received = all_to_all_single(torch.empty_like(sent), sent)
            answers = self.experts[str(self.own)](received)
            answers = all_to_all_single(torch.empty_like(answers), answers)
        shares = self.router(x).softmax(-1).movedim(-1, 0)[..., None]
        return self.head(torch.tanh((shares * answers).sum(0)))


with two_ranks() as rank:
    torch.manual_seed(0)
    plain = Routed().double()
    plain.experts["1"][0].load_state_dict(plain.experts["0"][0].state_dict())
    model = Routed(rank)
    model.load_state_dict(plain.state_dict(), strict=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    texts = [text(6, seed=3 * other, lengths=EVEN) for other in range(2)]
    windows = [[*chain(*parts)] for parts in zip(*texts, strict=True)]  # of all ranks

    for window in texts[rank]:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for ids, labels in window:
            loss = token_loss(model(ids), labels, "sum") * 2 / tokens
            loss.backward()
        for name, parameter in model.named_parameters():
            if not name.startswith("experts"):
                dist.all_reduce(parameter.grad)
            parameter.grad /= 2
        optimizer.step()
        optimizer.zero_grad()
