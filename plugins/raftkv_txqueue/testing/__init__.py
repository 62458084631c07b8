"""Storms of transactional queues in the simulated world; for developers of the plugin."""
