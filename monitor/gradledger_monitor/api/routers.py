"""All routes and pages of the service, in the order in which paths are matched."""

from __future__ import annotations

from gradledger_monitor.api.pages import (
    alert_forms,
    api_docs,
    compare,
    findings,
    message_links,
    override_settings,
    rule,
    run,
    run_list,
    selected_runs,
    settings,
    step,
)
from gradledger_monitor.api.pages import alerts as alert_pages
from gradledger_monitor.api.routes import (
    acknowledgements,
    alerts,
    comments,
    health,
    ingest,
    live,
    login,
    overrides,
    postmortem,
    runs,
    series,
    static_files,
)

ROUTES = (
    ingest,
    runs,
    series,
    acknowledgements,
    comments,
    alerts,
    overrides,
    message_links,
    live,
    health,
)
PAGES = (
    login,
    run_list,
    selected_runs,
    run,
    step,
    postmortem,
    compare,
    settings,
    alert_pages,
    alert_forms,
    override_settings,
    rule,
    findings,
    api_docs,
    static_files,
)
