"""Fills what a command or a service computes once, when it is imported: each fork then has it."""

from __future__ import annotations

from gradledger_monitor import cli
from gradledger_monitor.rules import docs
from gradledger_web import assets
from gradledger_web.rendering import environment

cli.command()
docs.headlines()
for asset in assets.paths():
    assets.url_path(asset)
assets.plotly_style_ids()
for template in environment().list_templates():
    environment().get_template(template)
