"""Experiments of more than one training: the demo, and pictures of methods."""
