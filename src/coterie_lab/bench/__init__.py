"""Benchmarks: every head side by side, on this machine."""
