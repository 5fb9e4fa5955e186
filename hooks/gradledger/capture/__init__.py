"""Captures backwards and optimizer steps as open records, on the training thread."""
