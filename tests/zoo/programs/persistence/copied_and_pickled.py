"""Copies and pickles of everything after some steps; training goes on with the copies."""

import copy
import pickle

import torch
from torch import nn


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    return model, optimizer, scheduler, torch.amp.GradScaler("cpu")


def train(model, optimizer, scheduler, scaler, steps=4):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
    print(loss.item(), sorted(vars(optimizer)), sorted(vars(scheduler)), sorted(vars(model)))


everything = build()
train(*everything)
train(*copy.deepcopy(everything))
copied = pickle.loads(pickle.dumps(everything))
train(*copied)
copied = copy.deepcopy(copied)
train(*copied)
train(*everything)
print(len(pickle.dumps(everything)), len(pickle.dumps(everything[1].state_dict())))
print([parameter.tolist() for parameter in copied[0].parameters()])
