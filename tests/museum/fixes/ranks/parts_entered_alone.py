"""Both ranks hold halves of a layer; the gradient of its input is not added up over them."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from museum.parts import VOCABULARY, added, mlp, text, token_loss, two_ranks, valid

evidence = "gradient_of_own"
assert dist  # for the fix


# fix
class Enter(torch.autograd.Function):
    """What enters the layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The same."""
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """That of this rank."""
        return gradients[0]


# end


class Halves(nn.Module):
    """Predicts the next token; the layers in the middle are split by their width in two."""

    def __init__(self, own: int | None = None, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.halves = nn.ModuleDict({name: mlp(width, width, width) for name in "01"})
        self.head = nn.Linear(width, VOCABULARY)
        self.in_parts = own is not None
        if own is not None:
            del self.halves[str(1 - own)]

    def forward(self, ids: Tensor) -> Tensor:
        """The logits."""
        x: Tensor = self.embed(ids)
        inputs = Enter.apply(x) if self.in_parts else x  # type: ignore[no-untyped-call]
        parts = [half(inputs) for half in self.halves.values()]
        if self.in_parts:
            (own,) = parts
            parts = [added(own)]
        logits: Tensor = self.head(x + sum(parts[1:], parts[0]))
        return logits


with two_ranks() as rank:
    torch.manual_seed(0)
    plain = Halves().double()
    model = Halves(rank)
    model.load_state_dict(plain.state_dict(), strict=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6)

    for window in windows:
        tokens = sum(valid(labels) for _, labels in window)
        for ids, labels in window:
            (token_loss(model(ids), labels, "sum") / tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
