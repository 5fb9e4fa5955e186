"""The gradients of experts are combined over no rank, although two ranks hold copies of each."""

from itertools import chain

import torch
import torch.distributed as dist

from museum.parts import Experts, all_ranks, summed, text, token_loss, valid

evidence = "gradient_of_own"
with all_ranks() as rank:
    ranks = dist.get_world_size()
    holders = [dist.new_group([0, 1]), dist.new_group([2, 3])]  # hold both experts together
    copies = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]  # of one expert
    torch.manual_seed(0)
    plain = Experts().double()
    model = Experts(holders[rank // 2], rank % 2)
    model.load_state_dict(plain.state_dict(), strict=False)
    experts = [*model.experts.parameters()]
    of_experts = {id(parameter) for parameter in experts}
    others = [each for each in model.parameters() if id(each) not in of_experts]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    texts = [text(6, seed=3 * other) for other in range(ranks)]
    windows = [[*chain(*parts)] for parts in zip(*texts, strict=True)]  # of all ranks
    factor = 1 / ranks

    for window in texts[rank]:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for ids, labels in window:
            (token_loss(model(ids), labels, "sum") * ranks / tokens).backward()
        for parameter in others:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad *= factor
        # fix
        for parameter in experts:
            assert parameter.grad is not None
            parameter.grad *= factor
        optimizer.step()
        # end
        optimizer.zero_grad()
