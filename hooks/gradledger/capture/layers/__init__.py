"""The layers of the model at a few steps: their names, and what is measured of them."""
