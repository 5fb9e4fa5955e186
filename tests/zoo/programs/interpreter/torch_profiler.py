"""torch.profiler around some steps, with a schedule and without, and user annotations."""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train(profiler):
    for _ in range(6):
        with record_function("my step"):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
        profiler.step()


ready = []
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=2),
    on_trace_ready=lambda profiler: ready.append(profiler.step_num),
) as profiler:
    train(profiler)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    train(profiler)
counts = {event.key: event.count for event in profiler.key_averages()}
print(ready, counts["my step"], counts["Optimizer.step#Adam.step"], model.weight.tolist())
