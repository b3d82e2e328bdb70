"""What is done to disk: where chunks lie until a version is whole, and when it counts as
visible."""
