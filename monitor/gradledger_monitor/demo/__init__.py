"""The demo: a training script in plain PyTorch, its service, and its results."""
