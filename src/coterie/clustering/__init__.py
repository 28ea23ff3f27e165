"""Who sits with whom, what is remembered of words, and how they are assigned."""
