"""ROUGE and its intervals."""
