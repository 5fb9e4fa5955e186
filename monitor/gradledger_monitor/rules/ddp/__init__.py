"""Rules on data parallelism: gradients, replicas and data of the ranks."""
