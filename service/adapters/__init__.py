"""Oncebox where its users already are: small adapters, each for one framework or protocol, over the SDK alone."""
