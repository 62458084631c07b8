"""Storms of the limbo in the simulated world; for developers of the plugin."""
