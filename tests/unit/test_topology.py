"""What the records of a step show about how its ranks work together."""

from __future__ import annotations

from gradledger.records import StepRecord
from gradledger_monitor.model.ranks.topology import topology
from gradledger_web import rank_table
from helpers.facts import accepted, facts, record, term


def rank(tokens: int, data: float | None, group: list[int] | None = None) -> StepRecord:
    """One micro-batch with the fingerprint ``data``."""
    sent = record([term(tokens, 1 / tokens)], data_group=group or [])
    sent.micro_batches[0].fingerprint = data
    return sent


def test_tensor_parallel_peers_have_the_same_data() -> None:
    sent = [rank(8, 1.5, [0, 2]), rank(8, 1.5, [1, 3]), rank(4, 2.5, [0, 2]), rank(4, 2.5, [1, 3])]
    found = topology(4, {number: accepted(one) for number, one in enumerate(sent)})
    assert found.data_groups == [[0, 2], [1, 3]]
    assert found.same_data == [[0, 1], [2, 3]]
    assert [part.tokens for part in found.ranks] == [8, 8, 4, 4]
    shown = rank_table.table(found, 7, [])
    assert [row.role for row in shown.rows][:2] == ["same data as rank 1", "same data as rank 0"]
    assert [row.fraction for row in shown.rows] == [1.0, 1.0, 0.5, 0.5]
    assert shown.sentences == [
        "Data-parallel groups, whose gradients are combined: ranks 0 and 2; ranks 1 and 3.",
        "Ranks with the same data: ranks 0 and 1; ranks 2 and 3.",
    ]


def test_a_rank_without_a_loss_is_named_only_beside_ranks_that_have_one() -> None:
    stage = record([[]])
    found = topology(2, {0: accepted(stage), 1: accepted(rank(4, None))})
    assert found.without_loss == [0]
    assert rank_table.table(found, 1, []).rows[0].role == "computes no loss"
    assert topology(2, {0: accepted(stage), 1: accepted(stage)}).without_loss == []


def test_what_was_not_measured_shows_nothing() -> None:
    constant = rank(4, 0.0)
    constant.micro_batches[0].constant_target = True
    unknown = rank(4, None)
    for sent in (constant, unknown):
        found = topology(2, {0: accepted(sent), 1: accepted(sent)})
        assert (found.data_groups, found.same_data, found.without_loss) == ([], [], [])
        assert rank_table.table(found, 1, []).sentences == []


def test_targets_that_hardly_vary_show_nothing() -> None:
    """The ones and zeros of a GAN's discriminator, in one batch; the last one may be short."""

    def same(*data: float) -> list[list[int]]:
        steps = [{rank_: accepted(rank(8, each)) for rank_ in range(2)} for each in data]
        return topology(2, steps[-1], earlier=lambda: steps[:-1]).same_data

    assert same(1.5, 1.5) == same(1.5, 1.5, 1.5, 2.5) == []
    assert same(1.5) == same(1.5, 2.5) == same(1.5, 1.5, 2.5, 3.5) == [[0, 1]]


def test_absent_ranks_are_shown_first_of_many() -> None:
    found = topology(100, {number: accepted(rank(4, None)) for number in range(98)})
    shown = rank_table.table(found, 1, never_sent=[99])
    absent = {row.rank: row.absent for row in shown.rows if row.absent}
    assert absent == {98: "no record of this step", 99: "never sent a record"}
    assert (len(shown.rows), shown.hidden) == (32, 68)
    assert shown.sentences == ["Tokens of a rank: 4 to 4."]


def test_tokens_are_those_of_the_heaviest_loss() -> None:
    both = record([[term(4, 0.25), term(64, 0.1, kind="MeanBackward0")]])
    assert topology(1, {0: accepted(both)}, "NllLossBackward0").ranks[0].tokens == 4


def test_tensor_parallel_peers_with_different_targets_are_not_measured() -> None:
    same, other = ([rank(8, data, [own]) for own, data in enumerate(d)] for d in ((5, 5), (5, 7)))
    for sent in (*same, *other):
        sent.tensor_group = [0, 1]
    assert facts(*same).unmeasured is None
    assert "have different targets" in str(facts(*other).unmeasured)
    for sent in other:
        sent.tensor_group = []  # ranks that train apart
    assert facts(*other).unmeasured is None
