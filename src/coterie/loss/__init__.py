"""The two-level loss in three implementations that compute the same function."""
