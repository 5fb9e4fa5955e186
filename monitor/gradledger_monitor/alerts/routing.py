"""Which channels a finding goes to (pure)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gradledger_monitor.alerts.configuration import Route
from gradledger_monitor.model.findings import SEVERITIES, Finding


@dataclass(frozen=True)
class Routing:
    """The channels that can be used, and the routes to them. Without routes, all hear warnings."""

    channels: Collection[str]
    routes: Sequence[Route] = ()

    def of(self, finding: Finding, project: str, run: str) -> set[str]:
        """The channels for what was found in a run of that name and project."""
        routes = self.routes or [Route(channels=list(self.channels))] if self.channels else []
        fitting = (route for route in routes if _fits(route, finding, project, run))
        return {name for route in fitting for name in route.channels if name in self.channels}


def _fits(route: Route, finding: Finding, project: str, run: str) -> bool:
    severe = SEVERITIES.index(finding.severity) >= SEVERITIES.index(route.severity)
    named = ((route.rules, finding.rule), (route.projects, project), (route.runs, run))
    return severe and all(any(fnmatchcase(is_, p) for p in patterns) for patterns, is_ in named)
