"""Untrusted text of a run on pages."""

from __future__ import annotations

import pytest

from gradledger_web.rendering import environment
from gradledger_web.step_table import short_term_name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("NllLossBackward0", "NllLoss"),
        ("odd # kind#2", "odd # kind#2"),
        ("#", "#"),
    ],
)
def test_the_name_of_a_loss_may_have_any_characters(name: str, shown: str) -> None:
    assert short_term_name(name) == shown


def test_control_characters_reach_no_page() -> None:
    template = environment().from_string("<p>{{ name }}</p>")
    assert (
        template.render(name="a\x00\x1b[31m\x9b\x7fb\tc")
        == "<p>a\ufffd\ufffd[31m\ufffd\ufffdb\tc</p>"
    )
