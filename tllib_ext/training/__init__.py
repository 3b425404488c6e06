"""The loop and what it needs: batches, players, records, checkpoints."""
