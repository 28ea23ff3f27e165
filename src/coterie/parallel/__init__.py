"""A layer in several processes."""
