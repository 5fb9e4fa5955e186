"""Writes to standard error when the hooks are on, beside lines that are ours."""

import os
import sys

if "GRADLEDGER_RUN" in os.environ:
    sys.stderr.write("gradledger: this line may be there\nand this one may not\n")
print("done")
