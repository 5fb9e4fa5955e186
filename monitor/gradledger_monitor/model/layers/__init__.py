"""The layers of the model at a few steps."""
