"""For mutants: few examples, the same each time, and no failing one made small; the museum last."""

from __future__ import annotations

import hypothesis
import pytest

hypothesis.settings.register_profile(
    "mutants",
    deadline=None,
    max_examples=15,
    database=None,
    derandomize=True,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
hypothesis.settings.load_profile("mutants")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Most mutants fall to a small test of their own; mutmut names tests in no order."""
    items.sort(key=lambda item: "museum_again" in item.nodeid)
