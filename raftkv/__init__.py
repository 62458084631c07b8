"""raftkv: an embeddable, Raft-replicated key-value module."""
