"""The weight swarm: peer-to-peer distribution of model weights for cluster-scale cold start."""
