"""A trainer that any experiment can use: it knows updates, evaluations and checkpoints, and nothing of language."""
