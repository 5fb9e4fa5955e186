"""``python -m gradledger``: the command of this interpreter's environment."""

import sys

from gradledger.cli import main

sys.exit(main())
