"""Runs read from the logs of other tools. One module per tool."""
