"""What a wrong gradient size does to training, in words, for the optimizer in use."""

from __future__ import annotations

# Optimizers whose step does not grow with the gradient: it is divided by its own running size.
_SCALE_FREE = ("adam", "adagrad", "rmsprop", "adafactor", "lion", "lamb", "nadam", "radam", "muon")


def is_scale_free(optimizer: str) -> bool:
    """Whether the optimizer divides the gradient's size out again."""
    return any(name in optimizer.lower() for name in _SCALE_FREE)


def of_factor(factor: float, optimizer: str) -> str:
    """The effect of gradients ``factor`` times as large as meant."""
    if is_scale_free(optimizer):
        return (
            f"{optimizer} divides most of a constant factor of {factor:.4g} out again, so the loss "
            "curve hides it; a clipping threshold, epsilon and everything that compares gradient "
            f"norms are off by it, and so is the step wherever the factor changes"
        )
    return f"With {optimizer} the effective learning rate is {factor:.4g} times the one configured"
