"""What the command line runs beyond a single training: comparisons and pictures."""
