"""Turns a directory into a version at the origin."""
