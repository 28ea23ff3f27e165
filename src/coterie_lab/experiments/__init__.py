"""The experiments: what is compared, in which recipe, and its report."""
