"""A finding is muted as a symptom only if it is gone when its cause is gone.

Each incident that may mute others runs with a second mistake that is not a consequence of the
first: a mean of unequal micro-batches, or no division by K. Its twin, in which the cause is
corrected, gets the same second mistake. What the cause muted must not be found there. That no
warning is found in the twin alone is shown by the museum itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gradledger_monitor.model.findings import Finding
from gradledger_monitor.rules.docs import rules_by_id
from helpers.facts import judged
from museum.evaluation import facts_of
from museum.labels import Piece, collection
from museum.stage import Stage

SECOND = {
    "unequal micro-batches": {
        ", lengths=EVEN": "",
        ", EVEN)": ")",
        "points([24]": "points([16, 8]",
    },
    "not divided": {" / len(window)": ""},
}
CAUSES = [
    piece
    for piece in collection()
    if piece.kind == "incident" and rules_by_id()[piece.label.expected].inhibits
]


def source(piece: Piece, suffix: str, second: str | None = None) -> str:
    """The incident or its twin, with a second mistake if one is named."""
    text = piece.script.with_name(f"{piece.script.stem}{suffix}.py").read_text()
    for right, wrong in SECOND[second].items() if second else ():
        text = text.replace(right, wrong)
    return text


CASES = [
    (piece, second)
    for piece in CAUSES
    for second in SECOND
    if all(source(piece, suffix, second) != source(piece, suffix) for suffix in ("", "_fixed"))
]


@pytest.mark.parametrize(
    ("piece", "second"), CASES, ids=[f"{piece.name}-{second}" for piece, second in CASES]
)
def test_what_a_cause_mutes_is_gone_without_the_cause(
    stage: Stage, piece: Piece, second: str, tmp_path: Path
) -> None:
    script = tmp_path / piece.script.name
    script.write_text(source(piece, "", second))
    muted = {f.rule for f in findings(stage, script, piece.ranks) if f.inhibited_by}
    script.write_text(source(piece, "_fixed", second))
    remaining = {f.rule for f in findings(stage, script, piece.ranks)}
    assert not muted & remaining


def findings(stage: Stage, script: Path, ranks: int) -> list[Finding]:
    """All findings of a script."""
    played = stage.play(script, ranks)
    assert not played.failed, played.printed
    return judged(facts_of(played.recorded)).findings
