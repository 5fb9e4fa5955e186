"""What `gradledger demo` trains: plain PyTorch that knows nothing of gradledger."""
