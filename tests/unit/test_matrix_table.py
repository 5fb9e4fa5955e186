"""``make matrix``: which pairs of versions it tests, and the table that it writes."""

from __future__ import annotations

from pathlib import Path

from matrix.run import BEGIN, END, NO_WHEEL, NOT_TESTED, Pair, chosen, markdown, parse, write

AVAILABLE = {
    Pair("3.10", "2.6.0"): NOT_TESTED,
    Pair("3.10", "2.15.0"): NO_WHEEL,
    Pair("3.14", "2.6.0"): NO_WHEEL,
    Pair("3.14", "2.15.0"): NOT_TESTED,
    Pair("3.11", "2.6.0"): NOT_TESTED,
    Pair("3.11", "2.15.0"): NOT_TESTED,
}


def test_each_pytorch_and_each_python_is_tested_once() -> None:
    assert chosen(AVAILABLE) == {
        Pair("3.10", "2.6.0"),
        Pair("3.14", "2.15.0"),
        Pair("3.11", "2.15.0"),
    }


def test_versions_are_ordered_as_numbers() -> None:
    assert markdown(AVAILABLE).splitlines() == [
        "| PyTorch | Python 3.10 | Python 3.11 | Python 3.14 |",
        "|---|---|---|---|",
        "| 2.6.0 | not tested | not tested | no wheel |",
        "| 2.15.0 | no wheel | not tested | not tested |",
    ]
    assert parse(markdown(AVAILABLE)) == AVAILABLE


def test_a_page_keeps_the_results_of_pairs_that_were_not_tested_again(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}{END}after\n")
    write(page, {Pair("3.10", "2.6.0"): "passed", Pair("3.11", "2.6.0"): NOT_TESTED})
    write(page, {Pair("3.10", "2.6.0"): NOT_TESTED, Pair("3.11", "2.6.0"): "1 failed"})
    assert page.read_text() == (
        f"before\n{BEGIN}"
        "| PyTorch | Python 3.10 | Python 3.11 |\n|---|---|---|\n| 2.6.0 | passed | 1 failed |\n"
        f"{END}after\n"
    )
