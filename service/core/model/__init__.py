"""What names and states mean, and how requests and answers look. Pure."""
