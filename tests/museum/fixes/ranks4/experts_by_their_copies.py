"""Gradients of experts are averaged over their copies, although tokens of all ranks reach them."""

from itertools import chain

import torch
import torch.distributed as dist

from museum.parts import Experts, all_ranks, summed, text, token_loss, valid

evidence = "gradient_of_own"
with all_ranks() as rank:
    ranks = dist.get_world_size()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]  # hold both experts together
    copies = [dist.new_group([0, 2]), dist.new_group([1, 3])]  # of one expert
    torch.manual_seed(0)
    plain = Experts().double()
    model = Experts(groups[rank // 2], rank % 2)
    model.load_state_dict(plain.state_dict(), strict=False)
    of_experts = {id(parameter) for parameter in model.experts.parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    texts = [text(6, 3 * other) for other in range(ranks)]
    windows = [[*chain(*parts)] for parts in zip(*texts, strict=True)]  # of all ranks

    def holders(parameter: torch.Tensor) -> dist.ProcessGroup:
        """The ranks with a copy."""
        group = copies[rank % 2] if id(parameter) in of_experts else dist.group.WORLD
        assert group is not None
        return group

    for window in texts[rank]:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for ids, labels in window:
            (token_loss(model(ids), labels, "sum") * ranks / tokens).backward()
        # fix
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, group=holders(parameter))
            parameter.grad /= dist.get_world_size(holders(parameter))
        # end
        optimizer.step()
        optimizer.zero_grad()
