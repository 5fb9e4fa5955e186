"""The pages: templates, styles, scripts, charts, and the functions that format facts as text.

Nothing here reads a database or handles a request: ``gradledger_monitor.api.pages`` does.
"""
