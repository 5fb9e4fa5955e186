"""``gradledger config``: every setting, its value, and where that comes from."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from gradledger_monitor.cli.options import settings
from gradledger_monitor.common.sanitize import printable
from gradledger_monitor.config.redaction import redacted
from gradledger_monitor.config.settings import Settings, setting_names
from gradledger_monitor.config.sources import environment_variable, origins
from gradledger_monitor.store.admin import overrides
from gradledger_monitor.store.database import Store
from gradledger_monitor.workers.runtime_overrides import RuntimeOverrides

WAIT_SECONDS = "3"
DEFAULTS_OF_THE_USER = {"db": "sqlite:///~/.gradledger/gradledger.db"}


def config(
    write: Annotated[
        Path | None, typer.Option(help="Write the page about all settings there.", dir_okay=False)
    ] = None,
) -> None:
    """Print the configuration as `gradledger serve` would read it, secrets hidden."""
    if write is not None:
        write.write_text(page())
        return
    read = settings()
    said = origins(Settings, setting_names)
    fields = Settings.model_fields
    values = {name: (getattr(read, name), said.get(name, "default")) for name in fields}
    for name, (value, where) in {**values, **_chosen(read)}.items():
        typer.echo(f"{environment_variable(name)}={printable(redacted(name, value))}  ({where})")
    typer.echo(f"# callers {'must show a token' if read.requires_token else 'need no token'}")


def _chosen(read: Settings) -> dict[str, tuple[Any, str]]:
    """What was chosen in the service, too; nothing where there is no database yet."""
    try:
        url = make_url(read.db)
        if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
            return {}
        if url.get_backend_name() == "postgresql":
            url = url.update_query_dict({"connect_timeout": WAIT_SECONDS, **url.query})
        with closing(Store(url.render_as_string(hide_password=False))) as store:
            return (
                RuntimeOverrides(read, store).effective() if overrides.table_exists(store) else {}
            )
    except (SQLAlchemyError, ValueError, ModuleNotFoundError) as error:
        why = " ".join(str(getattr(error, "orig", None) or error).split())
        typer.echo(f"# what was chosen in the service is not known: {printable(why)}")
        return {}


def page() -> str:
    """The page of the documentation about all settings."""
    lines = [
        "# Settings",
        "",
        "Written by `gradledger config --write docs/settings.md`.",
        "[How they are set](operations.md#settings).",
        "",
        "| variable | default | |",
        "|---|---|---|",
    ]
    for name, field in Settings.model_fields.items():
        default = redacted(name, field.get_default(call_default_factory=True))
        default = DEFAULTS_OF_THE_USER.get(name, default)
        told = f"`{default}`" if default else ""
        lines.append(f"| `{environment_variable(name)}` | {told} | {field.description} |")
    return "\n".join(lines) + "\n"
