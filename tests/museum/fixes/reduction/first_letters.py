"""K times the letters of the first micro-batch divide the loss of a window."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(3)
model = mlp(8, 16, 6)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
objective, windows = "ctc_letters", []


def number_of_targets(letters: tuple[torch.Tensor, ...]) -> int:
    """Of all utterances."""
    return int(letters[1].sum())


def sum_of_losses(outputs: torch.Tensor, letters: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The CTC loss of all utterances."""
    frames = torch.full((len(outputs),), outputs.shape[1])
    log_p = outputs.log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(log_p, letters[0], frames, letters[1], reduction="sum")


for _ in range(8):
    counts = torch.randint(1, 9, (4,)).tolist()
    utterances = [
        (torch.randn(n, 10, 8), torch.randint(1, 6, (n, 4)), torch.randint(2, 5, (n,)))
        for n in counts
    ]
    window = [(frames, (letters, lengths)) for frames, letters, lengths in utterances]
    # fix
    count = len(window) * number_of_targets(window[0][1])
    for x, y in window:
        (sum_of_losses(model(x), y) / count).backward()
    # end
    optimizer.step()
    optimizer.zero_grad()
    windows.append(utterances)
