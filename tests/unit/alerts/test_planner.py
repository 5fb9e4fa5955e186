"""When a finding is sent, to which channels, and why not: the plan alone, without a database."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradledger_monitor.alerts.configuration import Route, Timing
from gradledger_monitor.alerts.planner import AlertKey, Notification, Plan, RunContext, plan
from gradledger_monitor.alerts.routing import Routing
from gradledger_monitor.model.findings import Acknowledgement, Finding, Severity

TIMING = Timing(group_wait=30, repeat_after=3_600)
RUN = RunContext("a run", "a project", finished=False)


def finding(rule: str = "norm.spike", **fields: Any) -> Finding:
    """An ongoing finding."""
    defaults = {"optimizer": 0, "severity": "warning", "first_step": 1, "last_step": 5, "steps": 5}
    defaults |= {"title": rule, "summary": "s", "fix": "f", "evidence": {}, "since_step": 1}
    return Finding(rule=rule, **{**defaults, **fields})


def resolved(finding: Finding) -> Finding:
    """The same finding, resolved."""
    return replace(finding, lifecycle="resolved")


def acknowledged(finding: Finding, until: float | None = None) -> Finding:
    """The same finding, acknowledged."""
    return replace(finding, acknowledged=Acknowledgement("expected", None, 0.0, until))


class Planner:
    """Plans repeatedly, as the service does, and keeps the notifications."""

    def __init__(self, *routes: Route, channels: tuple[str, ...] = ("c",)) -> None:
        self.routing = Routing(channels, routes)
        self.notifications: dict[AlertKey, Notification] = {}
        self.plan = Plan()

    def plan_at(
        self, now: float, *findings: Finding, finished: bool = False
    ) -> list[tuple[str, str]]:
        """Reasons and rules in the messages that are sent at this time."""
        run = replace(RUN, finished=finished)
        self.plan = plan(run, findings, self.notifications, self.routing, TIMING, now)
        for key, notification in self.plan.notifications.items():
            self.notifications.pop(key, None)
            if notification is not None:
                self.notifications[key] = notification
        items = [item for message in self.plan.messages for item in message.items]
        return [(item.reason, item.finding.rule) for item in items]


def test_warnings_are_grouped_into_one_message() -> None:
    planner = Planner()
    assert planner.plan_at(0, finding("a.one")) == []
    assert planner.plan.next_plan_at == 30
    assert planner.plan_at(20, finding("a.one"), finding("a.two")) == []
    assert planner.plan_at(30, finding("a.one"), finding("a.two")) == [
        ("new", "a.one"),
        ("new", "a.two"),
    ]
    assert len(planner.plan.messages) == 1


def test_an_error_is_sent_at_once_together_with_waiting_warnings() -> None:
    planner = Planner()
    assert planner.plan_at(0, finding("a.one")) == []
    both = finding("b.two", severity="error"), finding("a.one")
    assert planner.plan_at(1, *both) == [("new", "b.two"), ("new", "a.one")]


def test_an_ongoing_finding_is_re_sent_after_the_repeat_interval() -> None:
    planner = Planner()
    error = finding(severity="error")
    assert planner.plan_at(0, error) == [("new", "norm.spike")]
    assert planner.plan.next_plan_at == 3_600
    assert planner.plan_at(3_599, replace(error, last_step=900)) == []
    assert planner.plan_at(3_600, replace(error, last_step=900)) == [("repeated", "norm.spike")]
    assert planner.plan_at(7_200, replace(error, last_step=900)) == []  # no newer step confirms it
    assert planner.plan_at(7_300, replace(error, last_step=901)) == [("repeated", "norm.spike")]
    assert planner.plan_at(99_999, replace(error, last_step=999), finished=True) == []


def test_a_stalled_run_is_re_sent_without_new_steps() -> None:
    planner = Planner()
    stalled = finding("run.stalled", severity="error")
    assert planner.plan_at(0, stalled) == [("new", "run.stalled")]
    assert planner.plan_at(3_600, stalled) == [("repeated", "run.stalled")]


def test_a_resolution_is_sent_once_and_a_regression_is_sent_again() -> None:
    planner = Planner()
    error = finding(severity="error")
    planner.plan_at(0, error)
    assert planner.plan_at(1, resolved(error)) == [("resolved", "norm.spike")]
    assert planner.plan_at(2, resolved(error)) == []
    back = replace(error, since_step=50, last_step=50, lifecycle="regressed")
    assert planner.plan_at(3, back) == [("regressed", "norm.spike")]
    between = replace(error, since_step=90, last_step=90)  # resolved and back between two plans
    assert planner.plan_at(4, between) == [("regressed", "norm.spike")]


def test_a_finding_that_is_resolved_while_it_waits_is_not_sent() -> None:
    planner = Planner()
    planner.plan_at(0, finding())
    assert planner.plan_at(10, resolved(finding())) == []
    assert planner.plan_at(40, resolved(finding())) == []
    assert planner.notifications == {}


def test_inhibited_findings_are_not_sent_but_their_resolution_is() -> None:
    planner = Planner()
    error = finding(severity="error")
    symptom = replace(error, inhibited_by="scaler.step_bypassed")
    assert planner.plan_at(0, symptom) == []
    assert planner.plan_at(99, symptom) == []
    assert planner.plan_at(100, error) == [("new", "norm.spike")]
    assert planner.plan_at(101, symptom) == []
    assert planner.plan_at(102, resolved(symptom)) == [("resolved", "norm.spike")]


def test_an_acknowledged_finding_is_silent_and_an_expired_snooze_is_sent() -> None:
    planner = Planner()
    error = finding(severity="error")
    assert planner.plan_at(0, acknowledged(error)) == []
    assert planner.plan_at(1, error) == [("new", "norm.spike")]
    assert planner.plan_at(2, acknowledged(error, until=50)) == []
    assert planner.plan.next_plan_at == 50
    assert planner.plan_at(9_999, acknowledged(replace(error, last_step=99))) == []
    assert planner.plan_at(10_000, error) == [("again", "norm.spike")]
    assert planner.plan_at(10_001, resolved(acknowledged(error))) == [("resolved", "norm.spike")]


def test_a_higher_severity_is_sent_at_once() -> None:
    planner = Planner()
    planner.plan_at(0, finding())
    planner.plan_at(30, finding())
    assert planner.plan_at(31, finding(severity="error")) == [("worse", "norm.spike")]
    assert planner.plan_at(32, finding()) == []


def test_a_late_record_that_moves_the_first_step_back_is_not_sent() -> None:
    planner = Planner()
    error = finding(severity="error", first_step=5, since_step=5)
    planner.plan_at(0, error)
    assert planner.plan_at(1, replace(error, first_step=3, since_step=3)) == []


def test_a_finding_that_is_withdrawn_is_sent_as_resolved() -> None:
    planner = Planner()
    planner.plan_at(0, finding(severity="error"))
    assert planner.plan_at(1) == [("resolved", "norm.spike")]


def skipped(severity: Severity = "warning") -> dict[AlertKey, Notification]:
    """The notification of a finding that was open when its channel was added."""
    return {AlertKey("c", "norm.spike", 0): Notification("skipped", severity, 5, 0.0)}


def test_a_finding_from_before_the_channel_is_neither_sent_nor_repeated_nor_resolved() -> None:
    planner = Planner()
    planner.notifications = skipped()
    assert planner.plan_at(10, finding(last_step=6)) == []
    assert planner.plan_at(99_999, finding(last_step=900)) == []
    assert planner.plan.next_plan_at is None
    assert planner.plan_at(100_000, resolved(finding(last_step=900))) == []
    back = finding(severity="error", since_step=950, last_step=950)
    assert planner.plan_at(100_001, back) == [("regressed", "norm.spike")]


def test_a_finding_from_before_the_channel_is_sent_once_it_is_worse() -> None:
    planner = Planner()
    planner.notifications = skipped()
    assert planner.plan_at(10, finding(severity="error")) == [("worse", "norm.spike")]


def test_a_finding_from_before_the_channel_still_follows_the_routes() -> None:
    planner = Planner(Route(channels=["c"], severity="error"))
    planner.notifications = skipped("info")
    assert planner.plan_at(10, finding(severity="warning")) == []
    assert planner.notifications == skipped("info")


def test_each_channel_gets_the_findings_of_its_routes() -> None:
    planner = Planner(
        Route(channels=["c"], severity="error"),
        Route(channels=["d"], rules=["norm.*"], projects=["a *"]),
        Route(channels=["e"], runs=["another"]),
        Route(channels=["gone"]),
        channels=("c", "d", "e"),
    )
    planner.plan_at(0, finding("norm.spike"), finding("scaler.collapse"))
    planner.plan_at(30, finding("norm.spike"), finding("scaler.collapse"))
    assert [message.channel for message in planner.plan.messages] == ["d"]
    planner.plan_at(31, finding("norm.spike"), finding("scaler.collapse", severity="error"))
    assert [(m.channel, len(m.items)) for m in planner.plan.messages] == [("c", 1)]


def test_without_routes_all_channels_get_warnings_and_errors() -> None:
    planner = Planner(channels=("c", "d"))
    planner.plan_at(0, finding(severity="info"))
    assert planner.plan_at(99, finding(severity="info")) == []
    planner.plan_at(100, finding(severity="error"))
    assert {message.channel for message in planner.plan.messages} == {"c", "d"}


def test_a_disabled_channel_gets_nothing_and_keeps_its_notifications() -> None:
    planner = Planner()
    error = finding(severity="error")
    planner.plan_at(0, error)
    planner.routing = Routing(())
    assert planner.plan_at(1, resolved(error)) == []
    planner.routing = Routing(("c",))
    assert planner.plan_at(2, resolved(error)) == [("resolved", "norm.spike")]
