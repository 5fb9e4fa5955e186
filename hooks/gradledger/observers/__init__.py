"""One file for each thing that is observed; each can fail alone."""
