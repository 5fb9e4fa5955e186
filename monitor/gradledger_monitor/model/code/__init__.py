"""Calls of the script as data: where they are, and the lines that show them."""
