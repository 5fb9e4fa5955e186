"""Observes losses: the reduction, the token count and the weight of each one.

The ``_saved_*`` and ``_raw_saved_*`` attributes of autograd nodes are private API of PyTorch. Only
the modules of this package and of ``below_losses`` read them.
"""
