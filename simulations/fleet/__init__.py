"""A serving fleet in virtual time: traffic, replicas, autoscaling, and what it all costs."""
