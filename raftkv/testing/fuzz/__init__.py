"""Fuzzing: damaged frames, logs, snapshots and documents, with an oracle for each.

`tools/fuzz` is the command; docs/internals/fuzzing.md says what is fed and what may come of it.
"""
