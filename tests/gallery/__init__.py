"""Pictures of every page in every state, in both themes and two widths, and what a page costs.

``make gallery`` writes them into ``build/gallery``, to be looked at. Nothing of it is committed.
"""
