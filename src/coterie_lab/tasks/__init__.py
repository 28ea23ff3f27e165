"""What is trained: language models and summarizers."""
