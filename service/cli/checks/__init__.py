"""What ``oncebox doctor`` checks: probes that look, and the findings that they lead to, each with its mend."""
