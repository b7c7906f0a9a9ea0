"""Files of a sandbox, in and out: `paths` and `listing` are pure, `scripts` runs in the sandbox, the rest carries it out."""
