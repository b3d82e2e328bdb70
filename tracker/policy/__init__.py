"""What the tracker decides. Pure: no IO, no clock."""
