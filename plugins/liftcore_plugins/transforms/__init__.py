"""Transforms: one plugin a file."""
