"""What is done to the network: links to peers, the origin and the tracker, under one supervisor."""
