"""Are gradients synchronised over the ranks once, and on the last micro-batch?"""
