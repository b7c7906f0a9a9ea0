"""The names of everything that Oncebox keeps in Redis. What one script touches has one hash tag."""

import zlib

CHANGES = "oncebox:changes"
"""The channel on which the id of a changed claim is published."""

LOOK_SHARDS = 16
"""Over so many sorted sets the active jobs are spread: a cluster's nodes then share them."""

OUTPUTS = ("oncebox:{outputs}:times", "oncebox:{outputs}:sizes")
"""The recorded outputs by time, and their sizes."""

LOOKS = tuple(f"oncebox:looks:{shard}" for shard in range(LOOK_SHARDS))
"""Active jobs by their next look."""


def is_job(id: str) -> bool:
    """Whether a claim's id is a ``command_id``; else it is the digest of a sandbox's key."""
    return id.startswith("cmd_")


def claim(id: str) -> str:
    """The claim: a header line and the body."""
    return f"oncebox:{{{id}}}:claim"


def output(id: str) -> str:
    """The output kept beside a claim."""
    return f"oncebox:{{{id}}}:output"


def request(id: str) -> str:
    """The request that made the claim."""
    return f"oncebox:{{{id}}}:request"


def streams(id: str) -> str:
    """The named outputs of an exec."""
    return f"oncebox:{{{id}}}:streams"


def of_claim(id: str) -> tuple[str, str, str, str]:
    """All keys of one claim, in the order in which the scripts take them."""
    return claim(id), output(id), request(id), streams(id)


def sandbox(sandbox_id: str) -> str:
    """What is remembered of a sandbox."""
    return f"oncebox:sandbox:{sandbox_id}"


def jobs(tenant: str, sandbox_id: str | None = None) -> str:
    """A tenant's jobs by time; those of one sandbox."""
    return f"oncebox:jobs:{{{tenant}}}" + ("" if sandbox_id is None else f":{sandbox_id}")


def active(sandbox_id: str) -> str:
    """The active jobs of a sandbox."""
    return f"oncebox:active:{sandbox_id}"


def looks(command_id: str) -> str:
    """Where a job's next look stands."""
    return LOOKS[zlib.crc32(command_id.encode()) % LOOK_SHARDS]


def lease(name: str) -> str:
    """A named lease."""
    return f"oncebox:lease:{name}"


def turn(queue: str, name: str) -> tuple[str, str]:
    """Who has the right to ``name``, and how far its queue is taken."""
    return f"oncebox:{{{queue}}}:turn:{name}", f"oncebox:{{{queue}}}:paid"


def memo(name: str) -> str:
    """A small named value."""
    return f"oncebox:memo:{name}"


def slots(name: str) -> str:
    """Slots that are taken, by when they end."""
    return f"oncebox:slots:{name}"


def rate(name: str) -> str:
    """What was let through lately."""
    return f"oncebox:rate:{name}"


def chores(name: str) -> str:
    """Chores by when they are due."""
    return f"oncebox:chores:{name}"
