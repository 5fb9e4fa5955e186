"""``assert_balanced``: the pytest fixture, in a separate pytest process."""

from __future__ import annotations

import os
from pathlib import Path

from helpers import forkserver
from helpers.patience import HANGS

TESTS = """
import pytest, torch
import torch.nn.functional as F

def train(weigh, steps=3, opened=True):
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        batches = [(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in (2, 6)]
        for x, y in batches:
            weigh(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

def fair(logits, y):
    return F.cross_entropy(logits, y, reduction="sum") / 8

def unfair(logits, y):
    return F.cross_entropy(logits, y) / 2

def test_a_fair_loop_passes(assert_balanced):
    assert assert_balanced(lambda: train(fair)).verdict == "balanced"

def test_an_unfair_loop_fails_with_the_report(assert_balanced):
    with pytest.raises(AssertionError, match="reduction.token_weights_unequal") as error:
        assert_balanced(lambda: train(unfair))
    assert "reduction=\\"sum\\"" in str(error.value)

def test_a_rule_may_be_allowed_and_a_weighting_declared(assert_balanced):
    assert_balanced(lambda: train(unfair), allow=["reduction.*"])
    assert_balanced(lambda: train(unfair), contract="sample")

def test_a_loop_that_never_steps_fails(assert_balanced):
    with pytest.raises(AssertionError, match="no optimizer step"):
        assert_balanced(lambda: None)

def test_an_unknown_rule_is_refused(assert_balanced):
    with pytest.raises(ValueError, match="no rule"):
        assert_balanced(lambda: None, allow=["nonsense"])

def test_what_the_training_raises_comes_through(assert_balanced):
    with pytest.raises(KeyError):
        assert_balanced(lambda: {}["x"])
    assert_balanced(lambda: train(fair))
"""


def test_the_fixture_of_an_installed_gradledger(tmp_path: Path) -> None:
    (tmp_path / "test_training.py").write_text(TESTS)
    env = {k: v for k, v in os.environ.items() if not k.startswith("GRADLEDGER_")}
    done = forkserver.run(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path],
        {**env, "GRADLEDGER_URL": "http://127.0.0.1:1"},
        tmp_path,
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
