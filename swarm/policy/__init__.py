"""What is decided: which chunk from whom, whom to serve, when to cut. Pure: no IO, no clock."""
