"""Measures on real machines what the capacity planner reckons with."""
