"""The text of a script's data: ``windows``, and ``counts`` of what each window is divided by."""

from __future__ import annotations

import random

from oracle.objectives import BATCHES, OBJECTIVES
from oracle.program import STEPS, Program

Lengths = list[list[list[int]]]  # of the rows of each micro-batch of each window


def windows(p: Program) -> str:
    """``windows``, of the rank."""
    shared = p.data_ranks == 1 or p.layout == "context"
    lengths = [_lengths(p, rank) for rank in range(1 if shared else p.data_ranks)]
    seed = str(p.seed % 1000)
    if not shared and "same_data" not in p.mistakes:
        seed += " + rank"
    text = f"""
LENGTHS = {_literal(lengths[0] if shared else lengths)}

{BATCHES[OBJECTIVES[p.objective].batch]}

generator = torch.Generator().manual_seed({seed})
windows = [
    [micro_batch(lengths, generator) for lengths in window]
    for window in {"LENGTHS" if shared else "LENGTHS[rank]"}
]
"""
    if p.pipeline and p.data == "unequal":
        text += """

def padded(features, labels):
    \"\"\"Two rows of six, the shape of every micro-batch of a pipeline.\"\"\"
    rows, length = 2 - labels.shape[0], 6 - labels.shape[1]
    features = F.pad(features, (0, 0, 0, length, 0, rows))
    return features, F.pad(labels, (0, length, 0, rows), value=-100)


windows = [[padded(*batch) for batch in window] for window in windows]
"""
    if p.layout == "context":
        text += """

def own_part(batch):
    \"\"\"A part of every sentence.\"\"\"
    return tuple(each.tensor_split(world_size, dim=1)[rank] for each in batch)


windows = [[own_part(batch) for batch in window] for window in windows]
"""
    return text


def totals(p: Program) -> str:
    """``counts``, where the normalisation divides by them."""
    objective = OBJECTIVES[p.objective]
    weights = "class_weights = torch.linspace(0.5, 2, 7)\n" if "class_" in objective.count else ""
    if p.normalisation in ("mean_k", "never", "twice", "terms_never", "sum", "sequence"):
        return weights
    count = {"samples": "len(labels)", "padded": "labels.numel()"}.get(
        p.normalisation, objective.count
    )
    text = f"""
{weights}
def count(batch):
    labels = batch[1]
    return {count}


counts = [float(sum(count(batch) for batch in window)) for window in windows]
"""
    if p.ranks_count != "each":
        group = ', group=mesh["data"].get_group()' if p.tensor_ranks > 1 else ""
        text += f"""
totals = torch.tensor(counts)
dist.all_reduce(totals{group})
counts = totals.tolist()
"""
    return text


def _literal(value: object) -> str:
    text = str(value).replace("]], [[", "]],\n    [[")
    return text.replace("[[[", "[\n    [[", 1).replace("]]]", "]],\n]", 1)


def _lengths(p: Program, rank: int) -> Lengths:
    """Row lengths; the number of micro-batches is the same on all ranks."""
    chance = random.Random(p.seed if "same_data" in p.mistakes else f"{p.seed} {rank}")
    sizes = [p.k] * STEPS
    if p.data == "short_window":
        sizes[-1] = 1 + p.seed % (p.k - 1)
    if p.data == "growing_k":
        sizes = [p.k + step // 2 for step in range(STEPS)]
    lengths = [[_rows(p, chance) for _ in range(size)] for size in sizes]
    if p.data == "short_batch":  # the last of an epoch
        lengths[-1][-1] = lengths[-1][-1][:1]
    if p.data == "empty_micro_batch":
        for window in lengths:
            window[chance.randrange(len(window))] = [0, 0]
    if p.data == "empty_rank" and rank == 1:
        lengths[1 + p.seed % (STEPS - 1)] = [[0, 0]] * p.k
    return lengths


def _rows(p: Program, chance: random.Random) -> list[int]:
    if p.data in ("equal", "short_batch"):
        return [3, 3]
    return [chance.randint(2, 6) for _ in range(chance.randint(1, 2))]
