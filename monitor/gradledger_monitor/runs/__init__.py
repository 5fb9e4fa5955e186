"""Whole runs by any name: find one, evaluate it again, compare two."""
