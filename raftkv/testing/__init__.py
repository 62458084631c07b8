"""Tools for testing programs on raftkv: ours and our users'."""
