"""The signatures: one file each, its id the path, its docstring the manual page."""
