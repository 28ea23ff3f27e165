"""A run for people to look at: one page with its figures and its clusters, and figures for papers."""
