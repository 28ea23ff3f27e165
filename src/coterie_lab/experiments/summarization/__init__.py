"""Sentence summarization: every head in one recipe."""
