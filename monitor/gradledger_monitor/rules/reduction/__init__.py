"""Rules on the weights of tokens: one file for each mistake in the normalisation of the loss."""
