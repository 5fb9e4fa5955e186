"""Waits at the end when the hooks are on, for longer than a slow machine may need."""

import atexit
import os
import time

if "GRADLEDGER_RUN" in os.environ:
    atexit.register(time.sleep, 12)
print("done")
