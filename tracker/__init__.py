"""The tracker: who holds which chunks, who may read the origin, which version a channel serves."""
