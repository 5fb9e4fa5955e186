"""The pages: templates, style, scripts, charts, and what turns facts into words.

Nothing here reads a database or answers a request: ``gradledger_monitor.api.pages.run_list`` does.
"""
