"""Files that are written atomically, and locks between processes."""
