"""For mutants: few examples, the same each time, and no failing one made small."""

from __future__ import annotations

import hypothesis

hypothesis.settings.register_profile(
    "mutants",
    deadline=None,
    max_examples=15,
    database=None,
    derandomize=True,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
hypothesis.settings.load_profile("mutants")
