"""What a replica is served with."""
