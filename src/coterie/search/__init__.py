"""Exact top-k, beam-search steps and samples from a trained layer."""
