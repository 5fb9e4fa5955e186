"""The right answer for a program: from the truth alone, by one table.

Read this file as carefully as a rule: it decides what a right answer is. Where the arithmetic has
the same consequence for several mistakes, each of their rules is an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from oracle.program import Program
from oracle.truth import Account, TrueStep, Truth

UNEQUAL = "reduction.token_weights_unequal"
WRONG = "reduction.wrong_denominator"
MISSING = "reduction.missing_division"
DOUBLE = "reduction.double_division"
PARTIAL = "reduction.partial_window"
WORLD = "reduction.world_size"
SUM = "reduction.unnormalised_sum"
DRIFT = "ddp.replica_drift"
OFF = "reduction.balance_off"  # of severity info: never required

MISALLOCATION = 0.01  # from here on a finding is a warning (DESIGN section 6)

# Mistakes of mechanics, which a script has by construction, and the rules that name them.
MISTAKES = {
    "never_zeroed": {"loop.grads_not_zeroed"},
    "second_never_zeroed": {"loop.grads_not_zeroed"},
    "zeroed_every_micro_batch": {"loop.zeroed_every_microbatch"},
    "zeroed_before_step": {"loop.zeroed_before_step", "loop.no_gradients"},
    "stepped_every_micro_batch": {"loop.step_every_microbatch"},
    "stepped_twice": {"loop.double_step"},
    "clipped_every_micro_batch": {"loop.clip_every_microbatch"},
    "scheduled_every_micro_batch": {"scheduler.step_every_microbatch"},
    "scaler_bypassed": {"scaler.step_bypassed"},
    "clipped_before_unscale": {"scaler.clip_before_unscale"},
    "first_unscaled": {"scaler.unscaled_backward"},
    "unscaled_inside": {"scaler.unscale_mid_window"},
    "updated_between": {"scaler.update_between_optimizers"},
    "synced_every_micro_batch": {"ddp.missing_no_sync"},
    "never_synced": {"ddp.never_synced"},
    "first_synced": {"ddp.wrong_microbatch_synced"},
    "same_data": {"ddp.duplicate_data"},
}


# What else is true of ranks that combine gradients wrongly: they drift, and why.
DRIFTING = {"early": {"ddp.wrong_microbatch_synced"}}


@dataclass(frozen=True)
class Expectation:
    """A right answer names one of ``required``, if there are any, and nothing beyond ``allowed``.

    ``unknown`` says why the truth does not decide: then any answer is right. ``hidden`` says why
    the hooks cannot see the loss: then "not measured" is right, too.
    """

    required: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()
    unknown: str = ""
    hidden: str = ""
    reasons: tuple[str, ...] = ()

    def __or__(self, other: Expectation) -> Expectation:
        """Of a program with the mistakes of both."""
        return Expectation(
            self.required | other.required,
            self.allowed | other.allowed,
            self.unknown or other.unknown,
            self.hidden or other.hidden,
            self.reasons + other.reasons,
        )


def of_mistakes(program: Program) -> Expectation:
    """The table of mistakes in the order of calls, and in which ranks get which data."""
    named = frozenset(rule for mistake in program.mistakes for rule in MISTAKES[mistake])
    if "stepped_every_micro_batch" in program.mistakes and program.ddp:
        named |= {"ddp.never_synced"}  # it steps on what no_sync kept local
    return Expectation(named, named | _consequences(program), reasons=(*sorted(program.mistakes),))


def of_arithmetic(program: Program, truth: Truth) -> Expectation:
    """The table of everything else, from what a program without such a mistake applied."""
    hidden = "the loss is compiled" if program.compile == "loss" else ""
    if program.normalisation == "sequence":
        return Expectation(unknown="a mean of each sequence may be intended")
    if program.objective == "class_weights" and program.data == "equal":
        return Expectation(unknown="a mean over tokens or over class weights may be intended")
    hand_written = program.objective in ("log_probs", "policy", "preference")
    if hand_written and program.normalisation == "sum":
        return Expectation(unknown="a sum over elements of unknown meaning may be intended")
    if truth.steps != truth.windows:
        return Expectation(unknown=f"{truth.steps} steps of {truth.windows} windows")
    if program.objective == "squared_error" and _halved(program, truth):
        return Expectation(unknown="half a squared error may be intended")
    if program.pipeline and program.k == 2 and _halved(program, truth):
        return Expectation(unknown="the schedule halves the gradient; half a loss may be intended")
    drifting = not truth.replicas_equal
    if any(not step.accounts for step in truth.true_steps) and not drifting:
        return Expectation(unknown="the applied gradient is not one of its window's elements")
    rules, reasons = _reductions(program, truth)
    if drifting:
        rules |= {DRIFT, *DRIFTING.get(program.all_reduce, ())}
        reasons.append("the ranks apply different gradients")
    severe = rules - {OFF}
    rules |= _batch_rules(truth) | _short_windows(program, truth)
    return Expectation(severe, rules, hidden=hidden, reasons=tuple(reasons))


def _short_windows(program: Program, truth: Truth) -> frozenset[str]:
    """A window of k micro-batches whose balance is k/K, whatever the others are."""
    for step in truth.true_steps:
        share = step.micro_batches / program.k
        for account in step.accounts.values():
            if share < 1 and abs(account.balance - share) <= _tolerance(program) * share:
                return frozenset({PARTIAL})
    return frozenset()


def _halved(program: Program, truth: Truth) -> bool:
    accounts = [step.accounts[program.objective] for step in truth.true_steps if step.accounts]
    return bool(accounts) and all(abs(each.balance - 0.5) < 1e-3 for each in accounts)


def _batch_rules(truth: Truth) -> frozenset[str]:
    """The number of rows of a step is random here, so that it may change and stay so by chance."""
    rows = [step.rows for step in truth.true_steps]
    return frozenset({"batch.changed_without_lr"} if max(rows) >= 1.5 * min(rows) else ())


def _consequences(program: Program) -> frozenset[str]:
    """What else is true of a program with its mistakes."""
    rules: set[str] = set()
    if "clipped_every_micro_batch" in program.mistakes and program.precision == "scaler":
        rules.add("scaler.clip_before_unscale")
    if "stepped_every_micro_batch" in program.mistakes and program.data != "equal":
        rules.add("batch.changed_without_lr")  # a step has the rows of one micro-batch
    return frozenset(rules)


def _reductions(program: Program, truth: Truth) -> tuple[frozenset[str], list[str]]:
    rules: set[str] = set()
    reasons = []
    steps = [step for step in truth.true_steps if step.accounts]
    for name in steps[0].accounts if steps else ():
        accounts = [(step, step.accounts[name]) for step in steps]
        named = _misallocated(program, accounts) | _divisors(program, accounts)
        if named:
            balances = ", ".join(f"{account.balance:.4g}" for _, account in accounts)
            uneven = max(account.misallocation for _, account in accounts)
            reasons.append(f"{name}: B = {balances}; d up to {uneven:.1%}")
        rules |= named
    return frozenset(rules), reasons


def _misallocated(program: Program, accounts: list[tuple[TrueStep, Account]]) -> set[str]:
    tolerance = 0.03 if program.precision == "bfloat16" else MISALLOCATION
    uneven = any(account.misallocation >= tolerance for _, account in accounts)
    return {UNEQUAL} if uneven else set()


def _divisors(program: Program, accounts: list[tuple[TrueStep, Account]]) -> set[str]:
    """Rules that name what the balance of one objective is off by.

    A factor of the number of ranks may come on top of another.
    """
    ranks, k = program.data_ranks, program.k
    divisors: dict[str, list[float]] = {
        MISSING: [float(step.micro_batches) for step, _ in accounts],
        DOUBLE: [step.micro_batches / k**2 for step, _ in accounts],
        PARTIAL: [step.micro_batches / k for step, _ in accounts],
        SUM: [account.tokens for _, account in accounts],
    }
    ones = [1.0] * len(accounts)
    if _fits(program, accounts, ones):
        return set()
    rules = {rule for rule, factors in divisors.items() if _fits(program, accounts, factors)}
    for world in (ranks, 1 / ranks) if ranks > 1 else ():
        for rule, factors in {WORLD: ones, **divisors}.items():
            other = rule == WORLD or factors != ones
            if other and _fits(program, accounts, [world * factor for factor in factors]):
                # that of a sum over each rank's tokens is no mistake of its own
                rules |= {rule} if rule == SUM and world < 1 else {rule, WORLD}
    balances = [account.balance for _, account in accounts]
    constant = max(balances) - min(balances) <= _tolerance(program) * max(map(abs, balances))
    return rules or ({OFF} if constant else {WRONG})


def _fits(program: Program, accounts: list[tuple[TrueStep, Account]], factors: list[float]) -> bool:
    pairs = zip(accounts, factors, strict=True)
    return all(abs(a.balance - f) <= _tolerance(program) * f for (_, a), f in pairs)


def _tolerance(program: Program) -> float:
    return 2e-2 if program.precision == "bfloat16" else 2e-3
