"""The experiments: their variants, recipes and reports."""
