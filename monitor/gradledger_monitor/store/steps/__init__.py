"""Step records and the curves made of them."""
