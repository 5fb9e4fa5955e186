"""Is every token's gradient weighted as the loss says? One file for each way in which it is not."""
