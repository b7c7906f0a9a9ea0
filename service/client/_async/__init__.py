"""The asynchronous half of the SDK."""
