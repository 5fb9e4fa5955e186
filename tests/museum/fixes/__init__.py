"""Programs with a mistake, and proof that the fix which their finding shows removes it.

The lines between ``# fix: PLACE`` and ``# end`` of a program are wrong, or missing. The proof puts
the lines of the fix there that follow its comment ``# PLACE:``; a fix of one part without such a
comment goes to ``# fix``. Nothing of a fix is copied into a program. ``...`` in a call is what the
program has in ``options``.
"""
