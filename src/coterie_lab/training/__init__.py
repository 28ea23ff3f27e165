"""A trainer for any task: it handles updates, evaluations and checkpoints, and knows nothing of language."""
