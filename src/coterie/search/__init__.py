"""Exact top-k, beams and draws from a trained layer."""
