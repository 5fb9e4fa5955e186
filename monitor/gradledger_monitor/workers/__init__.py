"""Background work with a clock and a database: evaluation and retention."""
