"""Prints something else when the hooks are on."""

import os

print("hooked" if "GRADLEDGER_RUN" in os.environ else "alone")
