"""What the command line runs beyond a single training: the demo, and pictures of methods."""
