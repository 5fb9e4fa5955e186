"""What holds for every test: nothing that the hooks swallow goes unnoticed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest

from gradledger import guard

# A test looks at every step of its loops, however short they are, unless that is its subject.
os.environ["GRADLEDGER_OVERHEAD"] = "full"

# How long an example takes is the machine's affair, not the code's.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

Swallowed = list[tuple[str, BaseException]]


@pytest.fixture(autouse=True)
def swallowed(request: pytest.FixtureRequest) -> Iterator[Swallowed]:
    """What the hooks kept from the script. Without the mark ``swallows``, any of it fails the test.

    A marked test that makes nothing fail is a mistake too.
    """
    caught: Swallowed = []
    guard.reporter = lambda where, error: caught.append((where, error))
    guard._told.clear()
    yield caught
    guard.reporter = None
    if request.node.get_closest_marker("swallows") is not None:
        assert caught, "this test is marked `swallows`, and the hooks swallowed nothing"
    elif caught:
        where, error = caught[0]
        raise AssertionError(f"swallowed by {where}: {error!r}") from error
