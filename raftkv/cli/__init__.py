"""The `raftkv` command, and the development cluster of real processes behind it."""
