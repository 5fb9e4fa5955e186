"""The form that acknowledges or snoozes findings."""

from __future__ import annotations

from gradledger_monitor.alerts.snooze import snooze_seconds
from gradledger_monitor.api.forms import MAX_NAME, MAX_NOTE, Form
from gradledger_monitor.api.middleware.credentials import caller
from gradledger_monitor.model.findings import Acknowledgement


def acknowledgement_of(form: Form, now: float) -> Acknowledgement:
    """The acknowledgement that a person entered; ``now`` in Unix seconds."""
    current = caller.get()
    seconds = snooze_seconds(form.get("hours", ""))
    by = form.get("by", "")[:MAX_NAME] or (current.token.name if current else None)
    note = form.get("note", "")[:MAX_NOTE] or "no note"
    return Acknowledgement(note, by, now, now + seconds if seconds else None)
