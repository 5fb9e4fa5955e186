"""When is what told, where, and why not: planning on findings alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradledger_monitor.alerts.configuration import Route, Timing
from gradledger_monitor.alerts.planner import Notice, Place, Plan, Subject, plan
from gradledger_monitor.alerts.routing import Routing
from gradledger_monitor.model.findings import Acknowledgement, Finding

TIMING = Timing(group_wait=30, repeat_after=3_600)
RUN = Subject("a run", "a project", over=False)


def finding(rule: str = "norm.spike", **said: Any) -> Finding:
    """A finding that lasts."""
    told = {"optimizer": 0, "severity": "warning", "first_step": 1, "last_step": 5, "steps": 5}
    told |= {"title": rule, "summary": "s", "fix": "f", "evidence": {}, "since_step": 1}
    return Finding(rule=rule, **{**told, **said})


def resolved(one: Finding) -> Finding:
    """The same, over."""
    return replace(one, lifecycle="resolved")


def known(one: Finding, until: float | None = None) -> Finding:
    """The same, acknowledged."""
    return replace(one, acknowledged=Acknowledgement("known", None, 0.0, until))


class Speaker:
    """Plans one look after another, as the service does, and remembers what it notes."""

    def __init__(self, *routes: Route, channels: tuple[str, ...] = ("c",)) -> None:
        self.routing = Routing(channels, routes)
        self.notices: dict[Place, Notice] = {}
        self.plan = Plan()

    def look(self, now: float, *findings: Finding, over: bool = False) -> list[tuple[str, str]]:
        """What is told at a moment: reasons and rules."""
        subject = replace(RUN, over=over)
        self.plan = plan(subject, findings, self.notices, self.routing, TIMING, now)
        for place, notice in self.plan.notices.items():
            self.notices.pop(place, None)
            if notice is not None:
                self.notices[place] = notice
        items = [item for message in self.plan.messages for item in message.items]
        return [(item.reason, item.finding.rule) for item in items]


def test_warnings_wait_for_each_other_and_go_in_one_message() -> None:
    speaker = Speaker()
    assert speaker.look(0, finding("a.one")) == []
    assert speaker.plan.look_at == 30
    assert speaker.look(20, finding("a.one"), finding("a.two")) == []
    assert speaker.look(30, finding("a.one"), finding("a.two")) == [
        ("new", "a.one"),
        ("new", "a.two"),
    ]
    assert len(speaker.plan.messages) == 1


def test_an_error_does_not_wait_and_takes_along_what_does() -> None:
    speaker = Speaker()
    assert speaker.look(0, finding("a.one")) == []
    both = finding("b.two", severity="error"), finding("a.one")
    assert speaker.look(1, *both) == [("new", "b.two"), ("new", "a.one")]


def test_what_was_told_is_not_told_again_until_it_has_lasted_for_long() -> None:
    speaker = Speaker()
    error = finding(severity="error")
    assert speaker.look(0, error) == [("new", "norm.spike")]
    assert speaker.plan.look_at == 3_600
    assert speaker.look(3_599, replace(error, last_step=900)) == []
    assert speaker.look(3_600, replace(error, last_step=900)) == [("repeated", "norm.spike")]
    assert speaker.look(7_200, replace(error, last_step=900)) == []  # no newer step shows it
    assert speaker.look(7_300, replace(error, last_step=901)) == [("repeated", "norm.spike")]
    assert speaker.look(99_999, replace(error, last_step=999), over=True) == []


def test_a_run_that_stands_still_is_repeated_without_steps() -> None:
    speaker = Speaker()
    stalled = finding("run.stalled", severity="error")
    assert speaker.look(0, stalled) == [("new", "run.stalled")]
    assert speaker.look(3_600, stalled) == [("repeated", "run.stalled")]


def test_resolved_is_told_to_whom_it_was_told_and_what_comes_back_speaks_again() -> None:
    speaker = Speaker()
    error = finding(severity="error")
    speaker.look(0, error)
    assert speaker.look(1, resolved(error)) == [("resolved", "norm.spike")]
    assert speaker.look(2, resolved(error)) == []
    back = replace(error, since_step=50, last_step=50, lifecycle="regressed")
    assert speaker.look(3, back) == [("regressed", "norm.spike")]
    between = replace(error, since_step=90, last_step=90)  # resolved and back in one look
    assert speaker.look(4, between) == [("regressed", "norm.spike")]


def test_what_passes_while_it_waits_is_never_told() -> None:
    speaker = Speaker()
    speaker.look(0, finding())
    assert speaker.look(10, resolved(finding())) == []
    assert speaker.look(40, resolved(finding())) == []
    assert speaker.notices == {}


def test_inhibited_findings_are_not_told_but_their_end_is() -> None:
    speaker = Speaker()
    error = finding(severity="error")
    symptom = replace(error, inhibited_by="scaler.step_bypassed")
    assert speaker.look(0, symptom) == []
    assert speaker.look(99, symptom) == []
    assert speaker.look(100, error) == [("new", "norm.spike")]
    assert speaker.look(101, symptom) == []
    assert speaker.look(102, resolved(symptom)) == [("resolved", "norm.spike")]


def test_acknowledged_is_silent_and_a_snooze_that_ends_speaks_again() -> None:
    speaker = Speaker()
    error = finding(severity="error")
    assert speaker.look(0, known(error)) == []
    assert speaker.look(1, error) == [("new", "norm.spike")]
    assert speaker.look(2, known(error, until=50)) == []
    assert speaker.plan.look_at == 50
    assert speaker.look(9_999, known(replace(error, last_step=99))) == []
    assert speaker.look(10_000, error) == [("again", "norm.spike")]
    assert speaker.look(10_001, resolved(known(error))) == [("resolved", "norm.spike")]


def test_what_gets_worse_is_told_at_once() -> None:
    speaker = Speaker()
    speaker.look(0, finding())
    speaker.look(30, finding())
    assert speaker.look(31, finding(severity="error")) == [("worse", "norm.spike")]
    assert speaker.look(32, finding()) == []


def test_a_late_record_that_moves_the_beginning_back_is_no_news() -> None:
    speaker = Speaker()
    error = finding(severity="error", first_step=5, since_step=5)
    speaker.look(0, error)
    assert speaker.look(1, replace(error, first_step=3, since_step=3)) == []


def test_what_is_not_found_any_more_is_told_as_resolved() -> None:
    speaker = Speaker()
    speaker.look(0, finding(severity="error"))
    assert speaker.look(1) == [("resolved", "norm.spike")]


def test_each_channel_hears_what_its_routes_say() -> None:
    speaker = Speaker(
        Route(channels=["c"], severity="error"),
        Route(channels=["d"], rules=["norm.*"], projects=["a *"]),
        Route(channels=["e"], runs=["another"]),
        Route(channels=["gone"]),
        channels=("c", "d", "e"),
    )
    speaker.look(0, finding("norm.spike"), finding("scaler.collapse"))
    speaker.look(30, finding("norm.spike"), finding("scaler.collapse"))
    assert [message.channel for message in speaker.plan.messages] == ["d"]
    speaker.look(31, finding("norm.spike"), finding("scaler.collapse", severity="error"))
    assert [(m.channel, len(m.items)) for m in speaker.plan.messages] == [("c", 1)]


def test_without_routes_all_channels_hear_warnings_and_errors() -> None:
    speaker = Speaker(channels=("c", "d"))
    speaker.look(0, finding(severity="info"))
    assert speaker.look(99, finding(severity="info")) == []
    speaker.look(100, finding(severity="error"))
    assert {message.channel for message in speaker.plan.messages} == {"c", "d"}


def test_a_channel_that_is_off_is_told_nothing_and_forgets_nothing() -> None:
    speaker = Speaker()
    error = finding(severity="error")
    speaker.look(0, error)
    speaker.routing = Routing(())
    assert speaker.look(1, resolved(error)) == []
    speaker.routing = Routing(("c",))
    assert speaker.look(2, resolved(error)) == [("resolved", "norm.spike")]
