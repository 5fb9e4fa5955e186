"""``gradledger rules``: the list of rules, and the manual page of a rule."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from gradledger_monitor.rules.docs import headline, markdown, rules_by_id


def rules(
    rule: Annotated[str | None, typer.Argument(help="A rule, such as ddp.never_synced.")] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write all manual pages to this folder.", file_okay=False)
    ] = None,
) -> None:
    """List all rules, or show the manual page of a rule."""
    catalogue = rules_by_id()
    if write is not None:
        write_pages(write)
    elif rule is None:
        table = Table("rule", "finding", box=None)
        for name, signature in catalogue.items():
            table.add_row(name, headline(signature))
        Console().print(table)
    elif rule in catalogue:
        Console().print(Markdown(markdown(catalogue[rule])))
    else:
        raise typer.BadParameter(f"there is no rule {rule!r}; `gradledger rules` lists them")


def write_pages(folder: Path) -> None:
    """One page for each rule, and an index."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# Rules", "", "Written by `gradledger rules --write docs/rules`.", ""]
    for name, signature in rules_by_id().items():
        (folder / f"{name}.md").write_text(markdown(signature))
        lines.append(f"- [`{name}`]({name}.md): {headline(signature)}")
    (folder / "index.md").write_text("\n".join(lines) + "\n")
