"""A small HTTP/1.1 server and client connection on trio; h11 does the parsing."""
