"""What is done to the origin: objects read from and written to an object store or a directory."""
