"""``gradledger config``: every setting with its value and its source."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from gradledger_monitor.cli.options import settings
from gradledger_monitor.cli.tables import show
from gradledger_monitor.common.sanitize import printable
from gradledger_monitor.config.redaction import redacted
from gradledger_monitor.config.settings import Settings, setting_names
from gradledger_monitor.config.sources import environment_variable, origins
from gradledger_monitor.store.admin import overrides
from gradledger_monitor.store.database import Store
from gradledger_monitor.workers.runtime_overrides import RuntimeOverrides

CONNECT_TIMEOUT_SECONDS = "3"
SHOWN_DEFAULTS = {"db": "sqlite:///~/.gradledger/gradledger.db"}


def config(
    write: Annotated[
        Path | None,
        typer.Option(help="Write the documentation of all settings.", dir_okay=False),
    ] = None,
) -> None:
    """Print the settings that `gradledger serve` would use, without secrets."""
    if write is not None:
        write.write_text(page())
        return
    current = settings()
    sources = origins(Settings, setting_names)
    fields = Settings.model_fields
    values = {name: (getattr(current, name), sources.get(name, "default")) for name in fields}
    for name, (value, source) in {**values, **_overrides(current)}.items():
        line = Text("", "" if source == "default" else "bold")  # what somebody set
        line.append(f"{environment_variable(name)}={printable(redacted(name, value))}")
        show(line.append(f"  ({printable(source)})", "dim"))
    show(Text(f"# token {'required' if current.requires_token else 'not required'}"))


def _overrides(current: Settings) -> dict[str, tuple[Any, str]]:
    """The settings that people changed in the service; none if there is no database yet."""
    try:
        url = make_url(current.db)
        if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
            return {}
        if url.get_backend_name() == "postgresql":
            url = url.update_query_dict({"connect_timeout": CONNECT_TIMEOUT_SECONDS, **url.query})
        with closing(Store(url.render_as_string(hide_password=False))) as store:
            return (
                RuntimeOverrides(current, store).effective()
                if overrides.table_exists(store)
                else {}
            )
    except (SQLAlchemyError, ValueError, ModuleNotFoundError) as error:
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        typer.echo(f"# the settings in the database cannot be read: {printable(reason)}")
        return {}


def page() -> str:
    """The documentation page of all settings."""
    lines = [
        "# Settings",
        "",
        "Written by `gradledger config --write docs/settings.md`.",
        "[How to set them](operations.md#settings).",
        "",
        "| variable | default | description |",
        "|---|---|---|",
    ]
    for name, field in Settings.model_fields.items():
        default = redacted(name, field.get_default(call_default_factory=True))
        default = SHOWN_DEFAULTS.get(name, default)
        default_cell = f"`{default}`" if default else ""
        lines.append(f"| `{environment_variable(name)}` | {default_cell} | {field.description} |")
    return "\n".join(lines) + "\n"
