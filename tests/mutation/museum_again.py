"""The whole museum, judged from what its scripts sent when ``tests/mutation/run`` played them."""

from __future__ import annotations

from pathlib import Path

import pytest

from museum.evaluation import evaluate
from museum.labels import Piece, collection
from museum.record import recorded

PLAYED = recorded(Path(__file__).parents[1] / "fixtures" / "museum")


@pytest.mark.parametrize("piece", collection(), ids=lambda piece: piece.name)
def test_a_mistake_is_named_and_a_healthy_script_left_alone(piece: Piece) -> None:
    assert evaluate(piece, PLAYED[piece.name]).correct
