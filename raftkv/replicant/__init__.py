"""Replicants: nodes that copy the committed log of an upstream core and never vote."""
