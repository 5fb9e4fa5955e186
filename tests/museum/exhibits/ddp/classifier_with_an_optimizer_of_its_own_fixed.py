"""An encoder and the classifier behind it, each under DDP and with its own optimizer."""

from contextlib import ExitStack

import torch
from torch.nn.parallel import DistributedDataParallel

from museum.parts import TinyLM, summed, text, token_loss, two_ranks, valid


class Encoder(TinyLM):
    """The layers before the head."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Hidden states [rows, length, width]."""
        return self.features(ids)


with two_ranks() as rank:
    torch.manual_seed(0)
    layers = Encoder()
    classifier = DistributedDataParallel(layers.head)
    layers.head = torch.nn.Identity()
    encoder = DistributedDataParallel(layers)
    first = torch.optim.SGD(encoder.parameters(), lr=0.3)
    second = torch.optim.Adam(classifier.parameters(), lr=1e-2)
    windows = text(9, seed=1 + rank)

    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for i, (ids, labels) in enumerate(window):
            with ExitStack() as stack:
                for wrapper in (encoder, classifier) if i + 1 < len(window) else ():
                    stack.enter_context(wrapper.no_sync())
                loss = token_loss(classifier(encoder(ids)), labels, "sum") * 2 / tokens
                loss.backward()
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
