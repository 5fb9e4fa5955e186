"""Which channels a finding goes to (pure)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

from gradledger_monitor.alerts.configuration import Route
from gradledger_monitor.model.findings import SEVERITIES, Severity


class Routed(Protocol):
    """What routes look at, of a finding."""

    @property
    def rule(self) -> str:
        """The rule that found it."""

    @property
    def severity(self) -> Severity:
        """Its severity."""


@dataclass(frozen=True)
class Routing:
    """The enabled channels and the routes to them.

    Without routes, every channel receives warnings and errors.
    """

    channels: Collection[str]
    routes: Sequence[Route] = ()

    def channels_for(self, finding: Routed, project: str, run: str) -> set[str]:
        """The channels for a finding in a run with this name and project."""
        routes = self.routes or [Route(channels=list(self.channels))] if self.channels else []
        matching = (route for route in routes if _matches(route, finding, project, run))
        return {name for route in matching for name in route.channels if name in self.channels}


def _matches(route: Route, finding: Routed, project: str, run: str) -> bool:
    severe = SEVERITIES.index(finding.severity) >= SEVERITIES.index(route.severity)
    fields = ((route.rules, finding.rule), (route.projects, project), (route.runs, run))
    return severe and all(
        any(fnmatchcase(value, p) for p in patterns) for patterns, value in fields
    )
