"""What people see: gallery, learning curves, tables and the self-contained page."""
