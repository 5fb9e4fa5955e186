"""The ``on_finding`` policy: what the training process does when the service reports a finding.

The uploader thread receives findings with the acknowledgement of records. A policy that acts on
the script (``stop`` or a callback) runs on the training thread, at the next optimizer step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from gradledger import guard
from gradledger.delivery import run_report
from gradledger.delivery.run_report import RunState, StateRequest
from gradledger.stderr import write_block, write_line

SEVERITIES = ("info", "warning", "error")
MIN_SEVERITY = {"warn": "warning", "stop": "error", "call": "warning", "off": "error"}
MAX_FINDINGS = 1_000  # of one run, each of which is reported once
MAX_ACTIVE = 20  # findings in a reply; one that is as long may leave some out

Action = Literal["warn", "stop", "call", "off"]


class ReportedFinding(NamedTuple):
    """A finding of the service about this run, as a callback receives it."""

    rule: str
    severity: str
    title: str
    summary: str
    fix: str
    optimizer: int
    since_step: int
    url: str  # the page of the run

    def __str__(self) -> str:
        context = f"{self.rule}, {self.severity} since step {self.since_step}"
        return f"{self.title} ({context}). {self.summary} {self.url}"


class FindingError(RuntimeError):
    """Raised at an optimizer step if ``on_finding="stop"`` and the service reported a finding."""

    def __init__(self, finding: ReportedFinding) -> None:
        super().__init__(f"{finding}\n\n{finding.fix}" if finding.fix else f"{finding}")
        self.finding = finding


Callback = Callable[[ReportedFinding], None]
OnFinding = str | Callback


class Policy(NamedTuple):
    """The action for findings of at least one severity."""

    action: Action = "warn"
    min_severity: str = MIN_SEVERITY["warn"]
    callback: Callback | None = None

    @property
    def acts_on_training_thread(self) -> bool:
        """Whether the action runs at an optimizer step."""
        return self.action in ("stop", "call")


def parse_policy(value: OnFinding) -> Policy:
    """The policy for ``warn``, ``stop``, ``off``, ``stop:warning`` or a callback.

    Raises ValueError for any other value.
    """
    if callable(value):
        return Policy("call", MIN_SEVERITY["call"], value)
    if not isinstance(value, str):
        raise ValueError("use warn, stop, off, stop:warning or a function")
    word, _, severity = value.partition(":")
    actions: dict[str, Action] = {"warn": "warn", "stop": "stop", "off": "off"}
    if word not in actions or (severity and severity not in SEVERITIES):
        raise ValueError("use warn, stop or off, optionally with a severity: stop:warning")
    return Policy(actions[word], severity or MIN_SEVERITY[word])


class FindingHandler:
    """Applies the policy, once for each finding."""

    def __init__(
        self,
        policy: Policy,
        run_url: Callable[[], str],
        prints: Callable[[], bool],
        summary: bool = False,
    ) -> None:
        """``summary``: also write the address of the run, and its verdict at the end."""
        self.policy = policy
        self._summary = summary
        self._state: RunState | None = None  # in the last reply
        self._current: list[ReportedFinding] = []
        self._run_url = run_url
        self._prints = prints  # True on one rank only
        self._reported: set[tuple[str, int, int]] = set()
        self._written: dict[tuple[str, int], ReportedFinding] = {}  # that were active since
        self._pending: deque[ReportedFinding] = deque()
        self._step_hook: Any = None

    @property
    def enabled(self) -> bool:
        """Whether to request findings from the service."""
        return self.policy.action != "off"

    @property
    def verdict(self) -> str:
        """The verdict in the last reply of the service, with the steps that it is about."""
        return run_report.verdict_text(self._state)

    # ------------------------------------------------------------ on the uploader thread

    def on_reply(self, state: RunState | None) -> None:
        """Handle the state of the run in a reply; the first one shows that the run is recorded."""
        first, self._state = self._state is None, state or self._state
        if self._summary and first and state is not None and self._prints():
            write_line(f"recording to {self._run_url()}")

    def report_end(self, request: StateRequest) -> None:
        """Write the verdict of the run, with the state that ``request`` returns."""
        if self._summary and self._state is not None and self._prints():
            state = run_report.final_state(self._state, request)
            self._state = state or self._state
            write_block(run_report.end_lines(state, self._current, self._run_url()))

    def on_findings(self, findings: Iterable[dict[str, Any]]) -> None:
        """Handle the current findings of this run; skip those that were handled before."""
        with guard.fail_open("on_finding"):
            self._current = [reported_finding(each, self._run_url()) for each in findings]
            self._write_inactive()
            for finding in self._current:
                self._on_finding(finding)

    def _on_finding(self, finding: ReportedFinding) -> None:
        key = (finding.rule, finding.optimizer, finding.since_step)
        severe = SEVERITIES.index(finding.severity) >= SEVERITIES.index(self.policy.min_severity)
        if not severe or key in self._reported or len(self._reported) >= MAX_FINDINGS:
            return
        self._reported.add(key)
        if self.policy.acts_on_training_thread:
            self._pending.append(finding)
        if self._prints() and self.policy.action in ("warn", "stop"):
            write_block(run_report.finding_lines(finding))
            self._written[finding.rule, finding.optimizer] = finding

    def _write_inactive(self) -> None:
        """Write which findings in the output are resolved, withdrawn or acknowledged since."""
        active = {(finding.rule, finding.optimizer) for finding in self._current}
        if len(active) < MAX_ACTIVE:
            for key in [key for key in self._written if key not in active]:
                write_line(run_report.inactive_line(self._written.pop(key)))

    # ------------------------------------------------------------ on the training thread

    def install(self) -> None:
        """Run before every optimizer step, ahead of all later hooks. Safe to call twice."""
        if self._step_hook is None and self.policy.acts_on_training_thread:
            from torch.optim.optimizer import (  # noqa: PLC0415 (loaded only if needed)
                register_optimizer_step_pre_hook,
            )

            self._step_hook = register_optimizer_step_pre_hook(self._before_step)

    def uninstall(self) -> None:
        """Remove the hook."""
        if self._step_hook is not None:
            self._step_hook.remove()
            self._step_hook = None

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        while self._pending:
            finding = self._pending.popleft()
            if self.policy.callback is None:
                raise FindingError(finding)
            self.policy.callback(finding)  # an exception of the callback reaches the script


def reported_finding(payload: dict[str, Any], run_url: str) -> ReportedFinding:
    """A finding in a reply of the service."""
    return ReportedFinding(
        rule=str(payload["rule"]),
        severity=str(payload["severity"]),
        title=str(payload["title"]),
        summary=str(payload["summary"]),
        fix=str(payload["fix"]),
        optimizer=int(payload["optimizer"]),
        since_step=int(payload["since_step"]),
        url=run_url,
    )
