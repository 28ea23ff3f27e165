"""The partition of words into clusters, the statistics it is learned from, and the assignment that updates it."""
