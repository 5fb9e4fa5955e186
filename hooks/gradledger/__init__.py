"""gradledger: light hooks that account for the weight of every token's gradient."""

__version__ = "0.1.0"
