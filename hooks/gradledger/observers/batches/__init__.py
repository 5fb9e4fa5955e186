"""Which batches the DataLoaders of the script deliver, and in which order."""
