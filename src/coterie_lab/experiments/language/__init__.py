"""Language modelling: every head in one recipe."""
