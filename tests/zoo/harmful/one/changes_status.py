"""Ends with another status when the hooks are on."""

import os
import sys

print("done")
sys.exit(3 if "GRADLEDGER_RUN" in os.environ else 0)
