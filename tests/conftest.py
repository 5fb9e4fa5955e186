"""What holds for every test: nothing that the hooks swallow goes unnoticed."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator

import hypothesis
import pytest

from gradledger import guard
from helpers import device, forkserver, memory_folder

# A test looks at every step of its loops, however short they are, unless that is its subject.
os.environ["GRADLEDGER_OVERHEAD"] = "full"

# Started in the background, or by nohup, a process ignores signals, and so do those that it starts.
# There are tests of what these signals do.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

device.occupy()
memory_folder.use()

# How long an example takes is the machine's affair, not the code's.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.register_profile("fast", deadline=None, max_examples=15)
hypothesis.settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    """Start the fork servers in the process that starts the workers: they serve all of them."""
    # Dynamo, about this patch version of Python
    config.addinivalue_line("filterwarnings", "ignore:Guards may run slower on Python 3.13.0")
    if not hasattr(config, "workerinput"):
        config.add_cleanup(forkserver.launch())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while the tests and their packages are loaded: they stay.

    It takes four of ten CPU seconds, in each worker, and a part of each collection in a test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _on_the_device() -> None:
    device.create_there()  # a test before may have set another default device


Swallowed = list[tuple[str, BaseException]]


@pytest.fixture(autouse=True)
def swallowed(request: pytest.FixtureRequest) -> Iterator[Swallowed]:
    """What the hooks kept from the script. Without the mark ``swallows``, any of it fails the test.

    A marked test that makes nothing fail is a mistake too.
    """
    caught: Swallowed = []
    guard.reporter = lambda where, error: caught.append((where, error))
    guard._reported.clear()
    yield caught
    guard.reporter = None
    if request.node.get_closest_marker("swallows") is not None:
        assert caught, "this test is marked `swallows`, and the hooks swallowed nothing"
    elif caught:
        where, error = caught[0]
        raise AssertionError(f"swallowed by {where}: {error!r}") from error
