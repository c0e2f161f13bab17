"""Recipes: typed sections, and the TOML files they are read from and written to."""
