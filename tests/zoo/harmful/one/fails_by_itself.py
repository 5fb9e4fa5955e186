"""Fails without the hooks, too: it would show nothing."""

import nothing_of_this_name  # noqa: F401
