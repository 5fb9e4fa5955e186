"""What the balance of a window means: its cause, named once for all rules that read it."""
