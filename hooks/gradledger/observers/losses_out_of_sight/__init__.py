"""Losses that the autograd graph does not show: fused and custom functions.

A function of a known library is read from its own arguments: one adapter for each library, which
``adapters`` installs when the script imports it. Of any other function that reduces by itself, the
tokens and the reduction are inferred from the gradient that leaves it: see ``inference``.
"""
