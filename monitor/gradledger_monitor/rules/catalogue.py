"""All rules, in the order in which the decision tree asks them."""

from __future__ import annotations

from gradledger_monitor.rules.base import Rule
from gradledger_monitor.rules.loop.step_every_microbatch import StepEveryMicrobatch
from gradledger_monitor.rules.reduction.balance_off import BalanceOff
from gradledger_monitor.rules.reduction.double_division import DoubleDivision
from gradledger_monitor.rules.reduction.missing_division import MissingDivision
from gradledger_monitor.rules.reduction.partial_window import PartialWindow
from gradledger_monitor.rules.reduction.token_weights_unequal import TokenWeightsUnequal
from gradledger_monitor.rules.reduction.unnormalised_sum import UnnormalisedSum
from gradledger_monitor.rules.reduction.world_size import WorldSize
from gradledger_monitor.rules.reduction.wrong_denominator import WrongDenominator

RULES: tuple[type[Rule], ...] = (
    MissingDivision,
    DoubleDivision,
    WorldSize,
    UnnormalisedSum,
    WrongDenominator,
    PartialWindow,
    TokenWeightsUnequal,
    BalanceOff,
    StepEveryMicrobatch,
)
