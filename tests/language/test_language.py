"""Code, pages and documentation use the field's standard terms; part of ``make lint``."""

from __future__ import annotations

from pathlib import Path

import pytest

from language import check


def found_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> list[str]:
    monkeypatch.setattr(check, "ROOT", tmp_path)
    (tmp_path / name).write_text(text)
    return [f"{use.line} {use.kind}: {use.word}" for use in check.uses(tmp_path / name)]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", "told = 1", ["1 identifier: told in told"]),
        ("a.py", "def f(beat_at): pass", ["1 identifier: beat in beat_at"]),
        ("a.py", "class TellAll: pass", ["1 identifier: tell in TellAll"]),
        ("a.py", "self.news = 1", ["1 identifier: news in news"]),
        ("a.py", "x = 1\n# whoever reads", ["2 text: whoever"]),
        ("a.py", 'def f():\n    """One.\n\n    What lasts.\n    """', ["4 text: lasts"]),
        ("a.py", "x = f'{y} was told'", ["1 text: told"]),
        ("a.md", "It says\n`told` and so many", ["1 text: says", "2 text: so many"]),
        ("a.html", "<p>given up</p>", ["1 text: given up"]),
        ("fate.py", "", ["1 identifier: fate"]),
    ],
)
def test_words_with_a_standard_term_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, expected: list[str]
) -> None:
    assert found_in(tmp_path, monkeypatch, name, text) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "heartbeat = founder = 1\n# the last step was outlasted"),
        ("a.md", "Run `tell` or\n```\nsays\n```\n"),
    ],
)
def test_other_words_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    assert found_in(tmp_path, monkeypatch, name, text) == []


def test_all_source_and_documentation_is_read() -> None:
    names = {str(path.relative_to(check.ROOT)) for path in check.sources([])}
    assert len(names) > 450
    assert {
        "README.md",
        "docs/ledger.md",
        "hooks/gradledger/api.py",
        "monitor/gradledger_monitor/rules/loop/double_step.py",
        "web/gradledger_web/templates/base.html",
        "web/gradledger_web/static/run.js",
    } <= names


def test_the_standard_terms_are_used_everywhere() -> None:
    uses = [str(use) for path in check.sources([]) for use in check.uses(path)]
    assert uses == []
