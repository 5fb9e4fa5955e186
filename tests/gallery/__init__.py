"""Pictures of every page in every state, in both themes and two widths.

``make gallery`` writes them into ``build/gallery``, to be looked at.
"""
