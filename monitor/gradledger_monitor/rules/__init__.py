"""The rules: one file each; its path is the id, its docstring the manual page."""
