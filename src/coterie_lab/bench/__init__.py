"""Benchmarks of all heads on this machine."""
