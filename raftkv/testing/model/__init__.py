"""Exhaustive small models: every interleaving of a few nodes, up to a bound.

`tools/model` runs them. `search.py` walks the states of a model breadth-first; each other module is
one model. A model calls the project's own pure functions wherever the rule under test is one of
them, so that a change of the rule changes the model too.
"""
