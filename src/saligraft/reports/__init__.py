"""Galleries, learning curves, tables and self-contained pages."""
