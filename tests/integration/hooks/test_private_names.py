"""A PyTorch without one of its private names: training goes on, and nothing untrue is claimed.

Each name is removed in a separate process, which then loads the hooks, because they look most names
up once. Names of C code are deleted. Names of Python code are changed wherever PyTorch uses them,
as a new version of it might. What cannot be observed without the name is not measured.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from helpers import forkserver
from helpers.patience import HANGS

PROGRAM = """
import gc, importlib, sys, types
for name in [name for name in sys.modules if name.startswith("gradledger")]:
    del sys.modules[name]
gc.unfreeze()  # else gc.get_objects() does not return PyTorch's functions
import torch, torch.distributed, torch.nn.parallel, torch.utils.data
torch.set_num_threads(1)

def rename(module, name):
    module, new = importlib.import_module(module), name + "_renamed"
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type)]
    for owner in [module, *(kind for kind in kinds if kind.__module__ == module.__name__)]:
        if name in vars(owner):
            setattr(owner, new, vars(owner)[name])
            delattr(owner, name)
    functions = [f for f in gc.get_objects() if type(f) is types.FunctionType]
    users = [f for f in functions if f.__globals__ is vars(module) and name in f.__code__.co_names]
    assert users
    for user in users:
        names = tuple(new if each == name else each for each in user.__code__.co_names)
        user.__code__ = user.__code__.replace(co_names=names)

groups = []  # kept: their destructors may wait for a thread that waits for the GIL

def run():
    from helpers.training import cross_entropy, tiny_model, tokens, windows
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:0", rank=0, world_size=1)
    groups.append(torch.distributed.group.WORLD)
    model = torch.nn.parallel.DistributedDataParallel(tiny_model())
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
    torch.distributed.destroy_process_group()
    return torch.cat([p.detach().flatten() for p in model.parameters()])

def outcome(module, name):
    if module == "C":
        exec("del torch._C." + name)
    else:
        rename(module, name)
    from gradledger import guard
    guard.report = lambda where, error: None
    try:
        alone = run()
    except Exception as error:
        return "PyTorch itself needs it"
    from helpers.training import Recording
    from gradledger.capture.recorder import Recorder
    recording = Recording()
    recorder = Recorder(recording.steps.append)
    recorder.install()
    observed = run()
    recorder.uninstall()
    if not torch.equal(alone, observed):
        return "other weights"
    if not recording.steps:
        return "nothing was recorded"
    evaluation = recording.evaluation()
    return ", ".join(finding.title for finding in evaluation.findings) or evaluation.verdict

print(outcome(*sys.argv[1:]))
"""

HONEST = ("balanced", "incomplete", "nothing was recorded", "PyTorch itself needs it")

CLIP, SCHEDULER = "torch.nn.utils.clip_grad", "torch.optim.lr_scheduler"
SCALER, DDP = "torch.amp.grad_scaler", "torch.nn.parallel.distributed"
LOADER, GROUPS = "torch.utils.data.dataloader", "torch.distributed.distributed_c10d"
NAMES = [
    ("C", "_current_graph_task_id"),
    ("C", "_len_torch_dispatch_stack"),
    ("C", "_DisableTorchDispatch"),
    ("C", "_dynamo.eval_frame.set_eval_frame"),
    (CLIP, "_clip_grads_with_norm_"),
    (SCHEDULER, "_enable_get_lr_call"),
    (SCALER, "_scale"),
    (SCALER, "_growth_tracker"),
    (DDP, "_pre_forward"),
    (DDP, "_comm_hooks"),
    (DDP, "require_backward_grad_sync"),
    (LOADER, "_num_yielded"),
    (GROUPS, "_world"),
]


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_nothing_untrue_is_claimed_without(module: str, name: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = forkserver.run([script, module, name], environ, timeout=HANGS)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] in HONEST  # Gloo prints, too
