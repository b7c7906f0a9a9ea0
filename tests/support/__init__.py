"""What the tests run on: real servers, other processes, and a network that misbehaves on request."""
