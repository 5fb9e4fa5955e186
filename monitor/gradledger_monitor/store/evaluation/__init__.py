"""What the evaluator reads and writes: pending steps, claims, snapshots, results."""
