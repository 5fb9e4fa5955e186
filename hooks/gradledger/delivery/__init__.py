"""Delivery of records to the service, on background threads."""
