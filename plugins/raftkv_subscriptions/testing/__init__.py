"""What tests and storms of replicated subscriptions are made of."""
