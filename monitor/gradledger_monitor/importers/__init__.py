"""Runs that were never watched, read from what other tools wrote down. One file for each tool."""
