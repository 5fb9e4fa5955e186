"""Long runs in many settings, healthy or with one fault, for the rules that need a history."""
