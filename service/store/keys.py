"""The names of everything that Oncebox keeps in Redis.

What one script touches lies in one shard, whose number is the hash tag, so that every path is the same on a Redis
Cluster: a sandbox with its jobs, their lists and what is kept of them. A sandbox's claim lies where its digest says.
"""

import zlib

from service.core.model.identity import parse_command_id

CHANGES = "oncebox:changes"
"""The channel on which the id of a changed claim is published."""

SHARDS = 16
"""A cluster's nodes share these; a list over all jobs is read from each."""


def shard(name: str) -> int:
    """The shard of a sandbox, by its id; of a sandbox's claim, by its digest."""
    return zlib.crc32(name.encode()) % SHARDS


def sandbox_of(id: str) -> str:
    """The sandbox of a job, by the job's id; the id itself where it names none."""
    parsed = parse_command_id(id)
    return id if parsed is None else parsed[0]


def _beside(id: str, what: str) -> str:
    return f"oncebox:{{{shard(sandbox_of(id))}}}:{what}:{id}"


def is_job(id: str) -> bool:
    """Whether a claim's id is a ``command_id``; else it is the digest of a sandbox's key."""
    return id.startswith("cmd_")


def claim(id: str) -> str:
    """The claim: a header line and the body."""
    return _beside(id, "claim")


def output(id: str) -> str:
    """The output kept beside a claim."""
    return _beside(id, "output")


def request(id: str) -> str:
    """The request that made the claim."""
    return _beside(id, "request")


def streams(id: str) -> str:
    """The named outputs of an exec, or the stderr of a job that has it apart."""
    return _beside(id, "streams")


def log(id: str, stream: str) -> str:
    """One of a job's logs."""
    return streams(id) if stream == "stderr" else output(id)


def of_claim(id: str) -> tuple[str, ...]:
    """All keys of one claim, in the order in which the scripts take them; a job's lists are among them."""
    kept = claim(id), output(id), request(id), streams(id)
    return (*kept, looks(id), active(sandbox_of(id))) if is_job(id) else kept


def sandbox(sandbox_id: str) -> str:
    """What is remembered of a sandbox."""
    return f"oncebox:{{{shard(sandbox_id)}}}:sandbox:{sandbox_id}"


def jobs(tenant: str, shard: int) -> str:
    """A tenant's jobs by time, of one shard."""
    return f"oncebox:{{{shard}}}:jobs:{tenant}"


def jobs_of(tenant: str, sandbox_id: str) -> str:
    """A tenant's jobs by time, of one sandbox."""
    return f"oncebox:{{{shard(sandbox_id)}}}:jobs:{tenant}:{sandbox_id}"


def lists(tenant: str, id: str) -> tuple[str, str]:
    """The lists in which a job stands for its tenant."""
    sandbox_id = sandbox_of(id)
    return jobs(tenant, shard(sandbox_id)), jobs_of(tenant, sandbox_id)


def minutes(tenant: str, shard: int) -> str:
    """What happened to a tenant's jobs, by minutes, of one shard."""
    return f"oncebox:{{{shard}}}:minutes:{tenant}"


def minutes_of(tenant: str, id: str) -> str:
    """Where what happens to a job is counted."""
    return minutes(tenant, shard(sandbox_of(id)))


def active(sandbox_id: str) -> str:
    """The active jobs of a sandbox."""
    return f"oncebox:{{{shard(sandbox_id)}}}:active:{sandbox_id}"


LOOKS = tuple(f"oncebox:{{{number}}}:looks" for number in range(SHARDS))
"""Active jobs by their next look."""


def looks(id: str) -> str:
    """Where a job's next look stands."""
    return LOOKS[shard(sandbox_of(id))]


OUTPUTS = tuple((f"oncebox:{{{n}}}:outputs:times", f"oncebox:{{{n}}}:outputs:sizes") for n in range(SHARDS))
"""The recorded outputs by time, and their sizes."""


def outputs(id: str) -> tuple[str, str]:
    """Where a job's recorded output is listed."""
    return OUTPUTS[shard(sandbox_of(id))]


def chores(name: str, shard: int) -> str:
    """Chores by when they are due, of one shard."""
    return f"oncebox:{{{shard}}}:chores:{name}"


def lease(name: str) -> str:
    """A named lease."""
    return f"oncebox:lease:{name}"


def poll_slot(queue: str, name: str) -> tuple[str, str]:
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
