"""What ``gradledger check`` tells other machines: one file for each of their languages (pure)."""
