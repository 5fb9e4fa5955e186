"""One module for each observed thing. Each observer can fail alone."""
