"""The two tasks: language models and summarizers."""
