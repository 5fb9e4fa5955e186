"""What the training process does when the service finds something in its run: the ``on_finding``
policy.

The courier hears of findings with the acknowledgement of records, on its own thread. What is to
happen to the script waits for the training thread to come by: at the next optimizer step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from gradledger import guard
from gradledger.stderr import write_line

SEVERITIES = ("info", "warning", "error")
LEAST = {"warn": "warning", "stop": "error", "call": "warning", "off": "error"}
MOST_SEEN = 1_000  # findings of one run, each of which is told once

What = Literal["warn", "stop", "call", "off"]


class Heard(NamedTuple):
    """A finding of the service about this run, as a callback gets it."""

    rule: str
    severity: str
    title: str
    summary: str
    fix: str
    optimizer: int
    since_step: int
    url: str  # the page of the run

    def __str__(self) -> str:
        where = f"{self.severity} since step {self.since_step}"
        return f"{self.title} ({self.rule}, {where}). {self.summary} {self.url}"


class FindingError(RuntimeError):
    """The service found something, and ``on_finding="stop"`` asked for an end of the training."""

    def __init__(self, finding: Heard) -> None:
        super().__init__(f"{finding}\n\n{finding.fix}" if finding.fix else f"{finding}")
        self.finding = finding


Callback = Callable[[Heard], None]
OnFinding = str | Callback


class Policy(NamedTuple):
    """What to do about findings of at least some severity."""

    what: What = "warn"
    least: str = LEAST["warn"]
    call: Callback | None = None

    @property
    def acts(self) -> bool:
        """Whether anything is done on the training thread."""
        return self.what in ("stop", "call")


def policy(said: OnFinding) -> Policy:
    """What ``warn``, ``stop``, ``off``, ``stop:warning`` or a callback means.

    Raises ValueError for what means nothing.
    """
    if callable(said):
        return Policy("call", LEAST["call"], said)
    if not isinstance(said, str):
        raise ValueError("it must be a word or a function")
    word, _, least = said.partition(":")
    what: dict[str, What] = {"warn": "warn", "stop": "stop", "off": "off"}
    if word not in what or (least and least not in SEVERITIES):
        raise ValueError("it must be warn, stop or off, or with a severity: stop:warning")
    return Policy(what[word], least or LEAST[word])


class Reaction:
    """Does what the policy says, once for each finding."""

    def __init__(self, policy: Policy, page: Callable[[], str], speaks: Callable[[], bool]) -> None:
        self.policy = policy
        self._page, self._speaks = page, speaks  # of several ranks, one prints
        self._seen: set[tuple[str, int, int]] = set()
        self._due: deque[Heard] = deque()
        self._hook: Any = None

    @property
    def listens(self) -> bool:
        """Whether the service is to say what it found."""
        return self.policy.what != "off"

    # ------------------------------------------------------------ on the courier's thread

    def hear(self, findings: Iterable[dict[str, Any]]) -> None:
        """What the service has found in this run so far; what is no news is passed over."""
        with guard.fail_open("on_finding"):
            for finding in findings:
                self._hear(_read(finding, self._page()))

    def _hear(self, one: Heard) -> None:
        key = (one.rule, one.optimizer, one.since_step)
        severe = SEVERITIES.index(one.severity) >= SEVERITIES.index(self.policy.least)
        if not severe or key in self._seen or len(self._seen) >= MOST_SEEN:
            return
        self._seen.add(key)
        if self.policy.acts:
            self._due.append(one)
        if self._speaks() and self.policy.what in ("warn", "stop"):
            write_line(str(one))

    # ------------------------------------------------------------ on the training thread

    def install(self) -> None:
        """Come by at every optimizer step, before anything else does. Safe to call twice."""
        if self._hook is None and self.policy.acts:
            from torch.optim.optimizer import (  # noqa: PLC0415 (only where it is asked for)
                register_optimizer_step_pre_hook,
            )

            self._hook = register_optimizer_step_pre_hook(self._before_step)

    def uninstall(self) -> None:
        """Come by no more."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        while self._due:
            finding = self._due.popleft()
            if self.policy.call is not None:
                self.policy.call(finding)  # the script's own: what it raises is the script's too
            else:
                raise FindingError(finding)


def _read(said: dict[str, Any], page: str) -> Heard:
    text = {name: str(said[name]) for name in ("rule", "severity", "title", "summary", "fix")}
    return Heard(
        **text, optimizer=int(said["optimizer"]), since_step=int(said["since_step"]), url=page
    )
