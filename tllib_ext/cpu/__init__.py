"""What makes a network faster on a CPU, with the same results up to rounding."""
