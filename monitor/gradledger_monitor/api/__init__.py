"""The HTTP interface: middleware, JSON routes and pages."""
