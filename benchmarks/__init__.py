"""Measurements, to be run from the root of the repository: ``make bench``, ``make gpu-check``."""
