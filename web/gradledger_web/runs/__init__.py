"""Several runs: the columns of their list, and what differs between them."""
