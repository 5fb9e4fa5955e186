"""Rules on the use of ``GradScaler``, and on its scale."""
