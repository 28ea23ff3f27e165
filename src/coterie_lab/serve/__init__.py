"""A small web service with limits: the page of a trained model, which answers questions."""
