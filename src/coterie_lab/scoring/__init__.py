"""ROUGE, with confidence intervals."""
