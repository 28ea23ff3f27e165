"""Sentence summarization: all heads with the same recipe."""
