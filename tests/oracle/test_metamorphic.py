"""Answers do not change where training does not, in generated, museum and example programs."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from museum.stage import Stage
from oracle.drawing import draw
from oracle.metamorphic import RELATIONS, Relation, answer, violation
from oracle.writing import script

ROOT = Path(__file__).parents[2]
EXHIBITS = ROOT / "tests/museum/exhibits/reduction"
PUBLIC = [
    EXHIBITS / "mean_of_means.py",
    EXHIBITS / "mean_of_means_fixed.py",
    EXHIBITS / "count_of_another_window.py",
    ROOT / "examples/plain_loop.py",
]
BY_NAME = {relation.name: relation for relation in RELATIONS}
ORDER, CONSTANT, SPLIT, RANKS, AUXILIARY = RELATIONS


@pytest.mark.parametrize("name", BY_NAME)
def test_a_relation_holds_for_generated_programs(name: str, stage: Stage) -> None:
    relation = BY_NAME[name]
    for program in itertools.islice(draw(2, relation.only), 2):
        text = script(program)
        assert violation(stage, relation, text, program.ranks) == "", text


@pytest.mark.parametrize("path", PUBLIC, ids=lambda path: path.stem)
@pytest.mark.parametrize("relation", [ORDER, CONSTANT, AUXILIARY], ids=lambda each: each.name)
def test_a_relation_holds_for_a_public_program(
    relation: Relation, path: Path, stage: Stage
) -> None:
    assert violation(stage, relation, path.read_text()) == ""


def test_the_data_of_two_ranks_may_be_swapped_in_an_exhibit(stage: Stage) -> None:
    text = (EXHIBITS / "averaged_once_more.py").read_text()
    assert violation(stage, RANKS, text, 2) == ""


def test_a_change_of_the_answer_is_a_violation(stage: Stage) -> None:
    repaired = Relation("a repair", ((r'labels, "sum"\) / num_items', 'labels, "sum") / now'),), "")
    text = (EXHIBITS / "count_of_another_window.py").read_text()
    text = text.replace("num_items = ", "now = counts[step]\n    num_items = ")
    assert "balanced (no finding)" in violation(stage, repaired, text)
    assert answer(stage, text).findings


def test_a_change_that_changes_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="swapped: no part of the script matches"):
        RANKS.changed("print()")
