# Generated from service/client/_async by docs/write_sync_client.py; do not edit.
"""The synchronous half of the SDK."""
