"""Waits at the end when the hooks are on."""

import atexit
import os
import time

if "GRADLEDGER_RUN" in os.environ:
    atexit.register(time.sleep, 1.3)
print("done")
