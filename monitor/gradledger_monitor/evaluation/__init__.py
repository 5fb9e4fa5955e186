"""From steps to findings and a verdict: the state of an evaluation and how it moves on (pure)."""
