"""Measurements against the alternatives on a shaped network; each prints JSON."""
