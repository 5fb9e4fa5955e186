"""Attacks on real service processes. ``make attack`` runs all and prints the result of each."""
