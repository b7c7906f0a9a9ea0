"""What tenants and replicas are held to."""
