"""How long a test waits for another process."""

from __future__ import annotations

# Seconds. It ends what hangs and says nothing of speed: where other tests run beside it, five
# imports of PyTorch and four of its compiler have taken longer than a minute and a half.
HANGS = 300.0
