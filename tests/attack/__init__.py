"""Attacks on real service processes. ``make attack`` runs all and prints what each one cost."""
