"""Files of a sandbox, in and out. `scripts` has what runs in it; `paths` and `conditions` are pure."""
