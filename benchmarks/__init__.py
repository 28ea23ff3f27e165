"""Benchmarks that are run by hand."""
