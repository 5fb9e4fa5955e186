"""``python -m gradledger_monitor.cli``."""

from gradledger_monitor.cli import main

main()
