"""The demo: what it trains (plain PyTorch that knows nothing of gradledger), and how it is told."""
