"""Losses inside a function that ``torch.compile`` compiles.

``dynamo.py`` sees each graph before it is lowered, ``plan.py`` reads from it how the losses reach
the outputs, and ``live.py`` applies that to the inputs of each call. Nothing is added to a graph.
"""
