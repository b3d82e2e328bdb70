"""The tracker's hard state: versions, channels, modes and operator nonces."""
