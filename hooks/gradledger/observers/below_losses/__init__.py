"""What the graph below a loss shows of it: masks, samples, and the activation of its input."""
