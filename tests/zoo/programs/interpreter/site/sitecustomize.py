"""The sitecustomize of a user."""

MARK = "the user's own"
