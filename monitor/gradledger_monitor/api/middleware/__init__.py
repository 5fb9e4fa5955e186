"""What every request passes: identity, scope, limits, headers, logging."""
