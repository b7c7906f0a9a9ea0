"""Whole replicas in a simulated world: virtual time, one seed."""
