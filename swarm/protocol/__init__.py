"""What is said: ids, chunk sets, manifests, messages, codecs. Pure: no IO, no clock."""
