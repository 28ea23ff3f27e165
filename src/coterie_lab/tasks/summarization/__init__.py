"""Abstractive sentence summarization: the paper's second experiment."""
