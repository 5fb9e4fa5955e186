"""Takes ten mebibytes more when the hooks are on."""

import os

if "GRADLEDGER_RUN" in os.environ:
    more = bytearray(os.urandom(10 * 2**20))
print("done")
