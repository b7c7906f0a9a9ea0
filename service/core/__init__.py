"""What Oncebox does: pure rules and use cases. Imports neither Starlette nor redis nor an HTTP client."""
