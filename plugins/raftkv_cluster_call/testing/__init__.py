"""Cluster calls in the simulated world (`tools/simulate-calls`): for tests and hunts."""
