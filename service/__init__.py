"""Oncebox: sandboxes that are created once, and commands that run once.

The distribution and the command are called ``oncebox``; this import package is called ``service``.
Users of the SDK write ``from oncebox import Client``.
"""

__version__ = "0.1.0"
