"""A PyTorch without one of its private names: training goes on, and nothing untrue is claimed.

Each name is taken away before the hooks are loaded, in a process of its own, since they look most
of them up once: a fork of one that has imported torch and none of the hooks. What cannot be
observed without the name is not measured.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from helpers.patience import HANGS

PROGRAM = """
import json, os, sys
sys.path[:0] = {path!r}
import torch, torch.distributed, torch.nn.parallel, torch.utils.data
torch.set_num_threads(1)

def run():
    from helpers.training import cross_entropy, tiny_model, tokens, windows
    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    data = torch.utils.data.DataLoader([0] * 4, batch_size=1)
    for window, _ in zip(windows(4), data):
        count = sum(map(tokens, window))
        for batch in window:
            scaler.scale(cross_entropy(model, batch, reduction="sum") / count).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()])

def outcome(take_away):
    exec(take_away)
    from gradledger import guard
    guard.report = lambda where, error: None
    try:
        from helpers.training import Recording
        alone = run()
    except AttributeError:
        return "PyTorch itself needs it"
    from gradledger.recorder import Recorder
    seen = Recording()
    recorder = Recorder(seen.steps.append)
    recorder.install()
    observed = run()
    recorder.uninstall()
    if not torch.equal(alone, observed):
        return "other weights"
    if not seen.steps:
        return "nothing was recorded"
    judgement = seen.judgement()
    return [finding.title for finding in judgement.findings] or judgement.verdict

assert "gradledger" not in sys.modules
for name, take_away in json.loads(sys.argv[1]).items():
    child = os.fork()
    if not child:
        print(json.dumps([name, outcome(take_away)]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""

HONEST = ("balanced", "incomplete", "nothing was recorded", "PyTorch itself needs it")

# How the name goes. Attributes of C types (``Tensor``, autograd nodes) cannot be taken away.
NAMES = {
    "graph task": "del torch._C._current_graph_task_id",
    "dispatch modes": "del torch._C._len_torch_dispatch_stack",
    "dispatch guard": "del torch._C._DisableTorchDispatch",
    "functional": "del torch._is_functional_tensor",
    "frame hook": "del torch._C._dynamo.eval_frame.set_eval_frame",
    "frame callback": "del torch._C._dynamo.eval_frame.get_eval_frame_callback",
    "clip": "del torch.nn.utils.clip_grad._clip_grads_with_norm_",
    "scheduler": "del torch.optim.lr_scheduler._enable_get_lr_call",
    "process groups": "del torch.distributed.distributed_c10d._world",
    "ddp forward": "del torch.nn.parallel.DistributedDataParallel._pre_forward",
    "loader": "del torch.utils.data.DataLoader.__iter__",
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, object]:
    """What became of a training without each name."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(path=sys.path), json.dumps(NAMES)],
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_untrue_is_said_without(outcomes: dict[str, object], name: str) -> None:
    assert outcomes[name] in HONEST
