"""The right answer for a program: from the truth alone, by one table.

Read this file as carefully as a rule: it decides what a right answer is. Where the arithmetic has
the same consequence for several mistakes, each of their rules is an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from oracle.program import DIVIDING, Program, is_balanced
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

VARIES = 0.02  # relative; by more, the balance is not the same in all windows
MISALLOCATION = 0.01  # from here on a finding is a warning (DESIGN section 6)

# For K that make K times its coefficient as round as that is: 0.1 may be 0.2 / 2.
K_OF_ROUND = {"z_loss": {2, 3}, "penalty": {2, 3}}

# Objectives that are cross entropies: a mean over tokens is usual, and no other divisor.
OF_TOKENS = {
    "cross_entropy",
    "ignore_index",
    "next_token",
    "masked",
    "smoothed",
    "class_weights",
    "chunked",
    "contrastive",
}

# Mistakes in the order of calls, which a script has by construction, and the rules that name them.
# Those in the number of synchronisations are counted.
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
    "stepped_by_other_scaler": {"scaler.two_scalers"},
    "first_synced": {"ddp.wrong_microbatch_synced"},
    "same_data": {"ddp.duplicate_data"},
}

NEVER_SYNCED = "ddp.never_synced"
SYNCED_OFTEN = "ddp.missing_no_sync"

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


def of_mistakes(program: Program, truth: Truth) -> Expectation:
    """The table of mistakes in the order of calls, and in which ranks get which data."""
    counted = _synchronisations(program, truth)
    mistakes = program.mistakes & MISTAKES.keys()
    if "stepped_every_micro_batch" in mistakes:
        mistakes -= _maybe_intended(program)
    named = frozenset(rule for mistake in mistakes for rule in MISTAKES[mistake]) | counted
    if not named and program.mistakes:
        return Expectation(unknown="1/K of a loss of a single micro-batch may be its weight")
    if "stepped_every_micro_batch" in program.mistakes and program.ddp:
        named |= {NEVER_SYNCED}  # it steps on what no_sync kept local
    allowed = {rule for mistake in program.mistakes & MISTAKES.keys() for rule in MISTAKES[mistake]}
    allowed |= named | _consequences(program)
    return Expectation(named, frozenset(allowed), reasons=(*sorted(mistakes), *sorted(counted)))


def _synchronisations(program: Program, truth: Truth) -> frozenset[str]:
    """What the number of synchronisations of DistributedDataParallel says, which is counted.

    A program that steps and synchronises on each micro-batch has windows of one.
    """
    of_one = {"stepped_every_micro_batch", "synced_every_micro_batch"}
    if not program.ddp or program.mistakes >= of_one:
        return frozenset()
    if not truth.synchronisations:
        return frozenset({NEVER_SYNCED})
    windows = truth.windows + (program.skipped != "none")
    return frozenset({SYNCED_OFTEN} if truth.synchronisations > windows else ())


def _maybe_intended(program: Program) -> set[str]:
    """What a program that intends it does, too, with these losses.

    One that steps on each micro-batch has windows of one, where the others are right.
    """
    synced = program.layout == "one" or "synced_every_micro_batch" in program.mistakes
    if synced and program.objective not in OF_TOKENS:
        return {mistake for mistake in MISTAKES if mistake.endswith("_every_micro_batch")}
    return set()


def of_arithmetic(program: Program, truth: Truth) -> Expectation:
    """The table of everything else, from what a program without such a mistake applied."""
    hidden = "the loss is compiled" if program.compile == "loss" else ""
    if program.normalisation == "sequence":
        return Expectation(unknown="a mean of each sequence may be intended")
    even = program.k == 1 and program.data in ("equal", "short_batch")  # on all ranks
    if program.objective == "class_weights" and (program.data == "equal" or even):
        return Expectation(unknown="a mean over tokens or over class weights may be intended")
    hand_written = program.objective in ("log_probs", "policy", "preference")
    if hand_written and program.normalisation == "sum":
        return Expectation(unknown="a sum over elements of unknown meaning may be intended")
    if program.normalisation == "terms_never" and _may_contain_k(program, truth):
        return Expectation(unknown="the coefficient of a term may contain 1/K")
    first_count = (program.loop, program.normalisation) == ("off_by_one", "stale_count")
    if first_count and program.objective not in OF_TOKENS:
        return Expectation(
            unknown="no window has its own count as divisor; one number may be meant"
        )
    if truth.steps != truth.windows:
        return Expectation(unknown=f"{truth.steps} steps of {truth.windows} windows")
    if program.objective == "squared_error" and _halved(program, truth):
        return Expectation(unknown="half a squared error may be intended")
    if even and program.normalisation == "share" and not is_balanced(program):
        return Expectation(unknown="the share of a rank may be an intended weight")
    if program.normalisation == "sum" and _is_constant_sum(program, truth):
        return Expectation(unknown="a sum of equally many elements may be intended")
    if program.pipeline and program.k == 2 and _halved(program, truth):
        return Expectation(unknown="the schedule halves the gradient; half a loss may be intended")
    drifting = not truth.replicas_equal
    if any(not step.accounts for step in truth.true_steps) and not drifting:
        return Expectation(unknown="the applied gradient is not one of its window's elements")
    rules, reasons = _reductions(program, truth)
    if drifting:
        rules |= {DRIFT, *DRIFTING.get(program.all_reduce, ())}
        reasons.append("the ranks apply different gradients")
    if not rules and _is_share_of_two(program, truth, "penalty"):
        return Expectation(unknown="the coefficient of the penalty may contain 1/2 for each rank")
    severe = (rules - {OFF}) | _short_windows(program, truth)
    rules |= severe | _batch_rules(truth) | _true_besides(program, truth)
    return Expectation(severe, rules, hidden=hidden, reasons=tuple(reasons))


def _short_windows(program: Program, truth: Truth) -> frozenset[str]:
    """A window of k micro-batches whose balance is k/K, whatever the others are."""
    for step in truth.true_steps:
        share = step.micro_batches / program.k
        for account in step.accounts.values():
            if share < 1 and abs(account.balance - share) <= _tolerance(program) * share:
                return frozenset({PARTIAL})
    return frozenset()


def _may_contain_k(program: Program, truth: Truth) -> bool:
    """Whether a coefficient and K times it are both round, and all windows have one K."""
    ambiguous = [K_OF_ROUND.get(term, set()) for term in program.auxiliaries]
    one_size = len({step.micro_batches for step in truth.true_steps}) == 1
    return one_size and any(program.k in each for each in ambiguous)


def _halved(program: Program, truth: Truth) -> bool:
    """Whether the balance is 1/2, or that of a shorter window as much smaller as the window."""
    steps = [step for step in truth.true_steps if step.accounts]
    accounts = [(step, step.accounts[program.objective]) for step in steps]
    halves = [0.5] * len(steps)
    of_windows = [step.micro_batches / program.k / 2 for step in steps]
    return bool(steps) and (
        _fits(program, accounts, halves) or _fits(program, accounts, of_windows)
    )


def _is_constant_sum(program: Program, truth: Truth) -> bool:
    """Whether elements of no known unit are added up, equally many in all windows."""
    steps = [step for step in truth.true_steps if step.accounts]
    counts = {step.accounts[program.objective].tokens for step in steps}
    if program.objective == "ctc_letters":
        counts = {step.rows for step in steps}  # a sum over utterances may be intended, too
    return program.objective not in OF_TOKENS | {"divergence"} and len(counts) == 1


def _is_share_of_two(program: Program, truth: Truth, name: str) -> bool:
    """Whether two ranks add up the same penalty: half of twice its coefficient looks the same."""
    accounts = [step.accounts.get(name) for step in truth.true_steps]
    return (
        (name, program.data_ranks) == ("penalty", 2)
        and program.by_hand
        and all(each is None or abs(each.balance - 2) < 1e-3 for each in accounts)
        and any(accounts)
    )


def _is_sum(steps: list[Account], ranks: int) -> bool:
    """Whether each token weighed 1, up to an average over the ranks, in two windows."""
    sums = [each for each in steps if abs(each.balance * ranks / each.tokens - 1) < 1e-3]
    return len(sums) > 1


def _by_framework(program: Program) -> int:
    """What a framework divides each loss by, a sum over tokens, too."""
    return program.k if program.loop in DIVIDING else 1


def _true_besides(program: Program, truth: Truth) -> frozenset[str]:
    """What is true of the numbers, whatever else names their cause."""
    rules = set()
    summed = program.all_reduce == "sum_only" or program.layout == "fsdp2_sum"
    if summed and program.normalisation in ("stale_count", "after_backward", "padded"):
        rules.add(WORLD)  # each rank divides the sum by its own count
    if program.ranks_count == "all_without_factor":
        rules.add(WORLD)  # the factor is missing whatever else the divisor lacks
    for name in {name for step in truth.true_steps for name in step.accounts}:
        accounts = [step.accounts[name] for step in truth.true_steps if name in step.accounts]
        balances = [account.balance for account in accounts]
        if max(balances) - min(balances) > VARIES * max(map(abs, balances)):
            rules.add(WRONG)
        # a divisor that is K, too, such as a number of samples, counts no tokens either
        shares = (1, program.data_ranks, _by_framework(program), program.k)
        if any(_is_sum(accounts, share) for share in shares):
            rules.add(SUM)
        if any(account.misallocation >= MISALLOCATION for account in accounts):
            rules.add(UNEQUAL)
        per_micro_batch = {
            (step.micro_batches, round(step.accounts[name].balance / step.micro_batches, 4))
            for step in truth.true_steps
            if name in step.accounts
        }
        if len(per_micro_batch) > len({weight for _, weight in per_micro_batch}) == 1:
            rules.add(PARTIAL)  # the shorter windows weigh less than the others
    return frozenset(rules)


def _batch_rules(truth: Truth) -> frozenset[str]:
    """The number of rows of a step is random here, so that it may change and stay so by chance."""
    rows = [step.rows for step in truth.true_steps]
    return frozenset({"batch.changed_without_lr"} if max(rows) >= 1.5 * min(rows) else ())


def _consequences(program: Program) -> frozenset[str]:
    """What else is true of a program with its mistakes."""
    rules: set[str] = set()
    if "updated_between" in program.mistakes and program.clipping == "window":
        rules.add("scaler.double_unscale")  # update forgets that the second one is unscaled
    if program.mistakes >= {"first_synced", "zeroed_every_micro_batch"}:
        rules.add(DRIFT)  # what was synchronised is gone
    unscales_once = program.mistakes >= {"stepped_every_micro_batch", "unscaled_inside"}
    if unscales_once and program.clipping == "window":
        rules.add("scaler.clip_before_unscale")  # of the other micro-batches
    if "clipped_every_micro_batch" in program.mistakes and program.scaled:
        rules.add("scaler.clip_before_unscale")
    if "stepped_every_micro_batch" in program.mistakes and program.data != "equal":
        rules.add("batch.changed_without_lr")  # a step has the rows of one micro-batch
    if "stepped_every_micro_batch" in program.mistakes and program.k == program.data_ranks > 1:
        rules.add(WORLD)  # one division too many by this number: the finding states both
    if program.objective in ("class_weights", "ctc_letters") and program.data == "equal":
        rules.add(UNEQUAL)  # of as many rows, the class weights or letters differ
    return frozenset(rules)


def _reductions(program: Program, truth: Truth) -> tuple[frozenset[str], list[str]]:
    rules: set[str] = set()
    reasons = []
    steps = [step for step in truth.true_steps if step.accounts]
    for name in steps[0].accounts if steps else ():
        if _is_share_of_two(program, truth, name):
            continue
        accounts = [(step, step.accounts[name]) for step in steps]
        named = _misallocated(program, accounts) | _divisors(program, accounts)
        if named:
            balances = ", ".join(f"{account.balance:.4g}" for _, account in accounts)
            uneven = max(account.misallocation for _, account in accounts)
            named |= {UNEQUAL} if uneven >= MISALLOCATION else set()  # an answer, too
            reasons.append(f"{name}: B = {balances}; d up to {uneven:.1%}")
        rules |= named
    return frozenset(rules), reasons


def _misallocated(program: Program, accounts: list[tuple[TrueStep, Account]]) -> set[str]:
    tolerance = 0.03 if program.in_half else MISALLOCATION
    shares = [account.misallocation for _, account in accounts]
    averages = [sum(shares[:n]) / n for n in range(1, len(shares) + 1)]
    uneven = any(min(pair) >= tolerance for pair in zip(shares, averages, strict=True))
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
        SUM: [account.tokens / _by_framework(program) for _, account in accounts],
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
    for world in (ranks, 1 / ranks) if ranks > 1 else ():
        if sum(_fits(program, [each], [world]) for each in accounts) > len(ones) / 2:
            # of most windows; where K = R, that factor is K, too
            rules |= {WORLD, MISSING if world > 1 else DOUBLE} if ranks == k else {WORLD}
    if rules == {SUM} and constant and program.normalisation == "samples":
        return {OFF}  # as many samples as ranks or micro-batches: the numbers do not tell which
    return rules or ({OFF} if constant else {WRONG})


def _fits(program: Program, accounts: list[tuple[TrueStep, Account]], factors: list[float]) -> bool:
    pairs = zip(accounts, factors, strict=True)
    return all(abs(a.balance - f) <= max(_tolerance(program), a.error) * f for (_, a), f in pairs)


def _tolerance(program: Program) -> float:
    return 2e-2 if program.in_half else 2e-3
