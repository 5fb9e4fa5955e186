"""Which model heads get a gradient of the wrong size from the Trainer, and what is found there.

The table in docs/frameworks.md is the expectation. For each version and head of it, the gradient
that an unmodified Trainer applies is compared with the true one, computed in float64 without
gradledger, and `gradledger check` must report what that comparison shows: nothing, or the rule
with the same factor. Not collected by `pytest` alone: `make missing-division` builds the
environments and runs this.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from frameworks.zero_code.checking import HERE, ONE_THREAD, check, python_of

PAGE = HERE.parents[2] / "docs" / "frameworks.md"
ENVIRONMENT_OF = {
    "4.57.6": "transformers-4.57",
    "5.0.0": "transformers-5.0",
    "5.23.0": "transformers-5",
}
RULE_OF = {
    "1.000": [],
    "4.000": ["reduction.missing_division"],
    "0.917": ["reduction.wrong_denominator"],
}


def factors_on_the_page() -> dict[str, dict[str, str]]:
    """Head -> version -> factor, as the table of the page states them."""
    table = re.search(r"^\| model head (\|.*\|)\n\|[-|]+\n((?:\|.*\n)+)", PAGE.read_text(), re.M)
    assert table, f"{PAGE} has no table of model heads"
    versions = re.findall(r"[\d.]+", table[1])
    rows = re.findall(r"^\| `(\w+)` (\|.*)$", table[2], re.M)
    return {
        head: dict(zip(versions, re.findall(r"[\d.]+", row), strict=True)) for head, row in rows
    }


FACTORS = factors_on_the_page()


@pytest.mark.parametrize("version", ENVIRONMENT_OF)
def test_the_applied_gradient_is_that_multiple_of_the_true_one(version: str) -> None:
    done = subprocess.run(
        [python_of(ENVIRONMENT_OF[version]), HERE / "true_gradient.py"],
        env=ONE_THREAD, stdout=subprocess.PIPE, text=True, check=True, timeout=600,
    )  # fmt: skip
    measured = json.loads(done.stdout)
    assert measured["transformers"] == version
    heads = measured["heads"]
    factors = {head: f"{result['plain']['factor']:.3f}" for head, result in heads.items()}
    assert factors == {head: row[version] for head, row in FACTORS.items()}
    for head, result in heads.items():
        assert result["fixed"]["factor"] == pytest.approx(1, abs=1e-3), head
        assert max(result["plain"]["residual"], result["fixed"]["residual"]) < 1e-4, head


@pytest.mark.parametrize("head", FACTORS)
@pytest.mark.parametrize("version", ENVIRONMENT_OF)
def test_check_reports_that_factor(version: str, head: str, tmp_path: Path) -> None:
    factor = FACTORS[head][version]
    status, report = check(ENVIRONMENT_OF[version], ["train_head.py", head], tmp_path / "a.json")
    assert report["steps"] == 5
    assert [finding["rule"] for finding in report["findings"]] == RULE_OF[factor]
    assert status == (1 if RULE_OF[factor] else 0)
    for finding in report["findings"]:
        assert finding["steps"] == 5
        assert f"{finding['evidence']['balance']:.3f}" == factor
    if not RULE_OF[factor]:
        assert report["verdict"] == "balanced"


@pytest.mark.parametrize("head", ["BertForSequenceClassification", "GPT2LMHeadModel"])
def test_the_line_that_the_finding_recommends_balances_it(head: str, tmp_path: Path) -> None:
    status, report = check("transformers-5", ["train_head.py", head, "--fixed"], tmp_path / "a")
    assert (status, report["verdict"], report["findings"]) == (0, "balanced", [])
