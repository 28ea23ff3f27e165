"""Language modelling: all heads with the same recipe."""
