"""The HTML pages, one file for each."""
