"""The statement that updates parameters by hand is found in the source, or none is."""

from __future__ import annotations

import pytest

from gradledger.capture.code.loss_statements import parsed_file
from gradledger.capture.code.update_statements import update_in, update_in_called

SGD = """
for x, y in data:
    loss = criterion(model(x), y)
    loss.backward()  # backward
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * p.grad  # update
            p.grad = None
"""
MOMENTUM = """
for x, y in data:
    criterion(model(x), y).backward()  # backward
    for p in model.parameters():
        if p.grad is None:
            continue
        v = momentum[p]
        v.mul_(0.9).add_(p.grad)
        p.data.add_(v, alpha=-lr)  # update
    model.zero_grad()
"""
RETURNED = """
for x, y in data:
    grads = torch.autograd.grad(criterion(x, w), [w])  # backward
    scaled = [g / 4 for g in grads]
    w = w - lr * scaled[0]  # update
"""
LOOP_OVER_RETURNED = """
grads = torch.autograd.grad(loss, weights)  # backward
for weight, grad in zip(weights, grads):
    weight.data.sub_(lr * grad)  # update
"""
CLIPPED_FIRST = """
loss.backward()  # backward
for p in model.parameters():
    p.grad.clamp_(-1, 1)
    p.data = p.data - lr * p.grad  # update
"""
OTHER_LIBRARY = """
loss.backward()  # backward
scheduler.step()
optimizer.step()  # update
"""
TWO = """
loss.backward()  # backward
a.data -= lr * a.grad
b.data -= lr * b.grad
"""
NONE = """
loss.backward()  # backward
total += loss.item()
"""


def line_of(source: str, mark: str) -> int:
    numbers = [n for n, line in enumerate(source.splitlines(), 1) if f"# {mark}" in line]
    return numbers[0] if numbers else 0


@pytest.mark.parametrize(
    "source", [SGD, MOMENTUM, RETURNED, LOOP_OVER_RETURNED, CLIPPED_FIRST, OTHER_LIBRARY]
)
def test_the_update_is_the_statement_whose_result_no_other_one_uses(source: str) -> None:
    file = parsed_file(source.splitlines())
    assert file is not None
    span = update_in(file, line_of(source, "backward"))
    assert span is not None and span.line == line_of(source, "update")


@pytest.mark.parametrize("source", [TWO, NONE])
def test_of_several_or_none_nothing_is_stated(source: str) -> None:
    file = parsed_file(source.splitlines())
    assert file is not None and update_in(file, line_of(source, "backward")) is None


CALLED = """
def sgd(params, lr):
    with torch.no_grad():
        for param in params:
            param -= lr * param.grad / batch_size  # update
            param.grad.zero_()

def report(loss):
    total = loss.item()

def train():
    loss(net(x), y).sum().backward()  # backward
    sgd([w, b], lr)
    report(loss)

train()
"""


def test_an_update_in_a_function_that_is_called_is_found() -> None:
    file = parsed_file(CALLED.splitlines())
    train = parsed_file(CALLED.splitlines()[10:15])
    assert file is not None and train is not None
    assert update_in(train, 2) is None
    span = update_in_called(file, train, line_of(CALLED, "backward"))
    assert span is not None and span.line == line_of(CALLED, "update")


def test_source_that_is_not_python_is_no_file() -> None:
    assert parsed_file(["for"]) is None
    assert parsed_file([]) is None
