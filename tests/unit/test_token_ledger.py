"""The arithmetic of the ledger, against tokens that are counted one by one."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradledger_monitor.model.token_ledger import WeightedTokens, build_ledger

counts = st.integers(1, 60)
weights = st.floats(1e-6, 1e6)
lines_of_it = st.builds(
    WeightedTokens, st.integers(0, 3), st.integers(0, 7), st.just("t"), counts, weights
)
windows = st.lists(lines_of_it, min_size=1, max_size=12)


def one_by_one(lines: list[WeightedTokens]) -> list[float]:
    """The weight of every single token."""
    return [line.weight for line in lines for _ in range(int(line.tokens))]


@given(windows)
def test_balance_and_misallocation_are_those_of_the_tokens_one_by_one(
    lines: list[WeightedTokens],
) -> None:
    each, ledger = one_by_one(lines), build_ledger(lines)
    assert ledger is not None
    assert ledger.tokens == len(each)
    assert ledger.balance == pytest.approx(math.fsum(each))
    distance = math.fsum(abs(w / math.fsum(each) - 1 / len(each)) for w in each) / 2
    assert ledger.misallocation == pytest.approx(distance, abs=1e-12)


@given(windows)
def test_each_entry_names_its_rank_micro_batch_and_term(lines: list[WeightedTokens]) -> None:
    ledger = build_ledger(lines)
    assert ledger is not None
    lines_of_entries = [
        WeightedTokens(e.rank, e.micro_batch, e.term, e.tokens, e.weight) for e in ledger.entries
    ]
    assert lines_of_entries == lines


@given(windows)
def test_shares_are_a_whole_and_misallocation_a_share(lines: list[WeightedTokens]) -> None:
    ledger = build_ledger(lines)
    assert ledger is not None
    assert math.fsum(entry.share for entry in ledger.entries) == pytest.approx(1)
    assert 0 <= ledger.misallocation <= 1
    mean = math.fsum(e.tokens * e.relative for e in ledger.entries) / ledger.tokens
    assert mean == pytest.approx(1)


@given(windows, st.floats(1e-3, 1e3))
def test_a_common_factor_is_in_the_balance_and_nowhere_else(
    lines: list[WeightedTokens], factor: float
) -> None:
    scaled = [
        WeightedTokens(x.rank, x.micro_batch, x.term, x.tokens, x.weight * factor) for x in lines
    ]
    one, other = build_ledger(lines), build_ledger(scaled)
    assert one is not None
    assert other is not None
    assert other.balance == pytest.approx(one.balance * factor)
    assert other.misallocation == pytest.approx(one.misallocation, abs=1e-9)


@given(windows, st.randoms())
def test_the_order_of_the_lines_does_not_matter(
    lines: list[WeightedTokens], chance: random.Random
) -> None:
    shuffled = chance.sample(lines, len(lines))
    one, other = build_ledger(lines), build_ledger(shuffled)
    assert one is not None
    assert other is not None
    assert (one.tokens, one.balance) == (other.tokens, other.balance)
    assert one.misallocation == pytest.approx(other.misallocation, abs=1e-12)


@given(st.lists(counts, min_size=1, max_size=12))
def test_equal_weights_are_never_misallocated(tokens: list[int]) -> None:
    share = 1 / sum(tokens)
    ledger = build_ledger([WeightedTokens(0, k, "t", n, share) for k, n in enumerate(tokens)])
    assert ledger is not None
    assert ledger.balance == pytest.approx(1)
    assert ledger.misallocation == pytest.approx(0, abs=1e-12)


@given(st.lists(counts, min_size=2, max_size=12))
def test_a_mean_of_means_misallocates_as_its_formula_predicts(tokens: list[int]) -> None:
    assume(len(set(tokens)) > 1)
    k, n = len(tokens), sum(tokens)
    ledger = build_ledger([WeightedTokens(0, i, "t", m, 1 / (k * m)) for i, m in enumerate(tokens)])
    assert ledger is not None
    assert ledger.balance == pytest.approx(1)
    assert ledger.misallocation == pytest.approx(sum(abs(m / n - 1 / k) for m in tokens) / 2)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [WeightedTokens(0, 0, "t", 0, 1.0)],
        [WeightedTokens(0, 0, "t", 3, 0.0)],
        [WeightedTokens(0, 0, "t", 3, math.nan)],
        [WeightedTokens(0, 0, "t", 3, math.inf)],
        [WeightedTokens(0, 0, "t", 3, 1.0), WeightedTokens(0, 1, "t", 3, -1.0)],
    ],
)
def test_without_weight_there_is_no_ledger(lines: list[WeightedTokens]) -> None:
    assert build_ledger(lines) is None


def test_a_micro_batch_without_tokens_has_no_line() -> None:
    ledger = build_ledger([WeightedTokens(0, 0, "t", 0, 0.0), WeightedTokens(0, 1, "t", 4, 0.25)])
    assert ledger is not None
    assert [(e.micro_batch, e.relative, e.share) for e in ledger.entries] == [(1, 1.0, 1.0)]
