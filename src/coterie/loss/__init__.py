"""One two-level loss, several ways; all compute the same function."""
