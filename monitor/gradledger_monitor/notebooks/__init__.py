"""Runs in Python, for notebooks: ``gradledger.load``."""

from gradledger_monitor.notebooks.load import load
from gradledger_monitor.notebooks.runs import Run, Runs

__all__ = ["Run", "Runs", "load"]
