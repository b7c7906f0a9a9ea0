"""What the sandboxes run: jobs of mixed length, each of whose output and end is known beforehand."""

import random
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

SEED = 20_260_101


@dataclass(frozen=True)
class Job:
    """A command, and what must come of it. `mark` is what it writes into the ledger when it starts."""

    mark: str
    kind: str
    script: str
    output: bytes
    exit_code: int
    seconds: float
    """How long it takes on an idle machine."""

    def command(self, ledger: str, sandbox: str) -> str:
        """For the sandbox's shell: it writes its start and its end down as well (`tests.chaos.recorder`)."""
        file = shlex.quote(ledger)
        return (
            f'echo "start {self.mark} $$ {sandbox} 0 $(date +%s.%N)" >>{file}; {self.script}; '
            f'echo "end {self.mark} $$ {self.exit_code} $(date +%s.%N)" >>{file}; exit {self.exit_code}'
        )


@dataclass(frozen=True)
class Plan:
    """How much there is to do. `pace` scales the lengths of jobs and the times between troubles."""

    sandboxes: int
    pace: float

    @property
    def scale(self) -> float:
        """How much more than 500 sandboxes, which the bounds of a run are for."""
        return max(1.0, self.sandboxes / 500)

    @staticmethod
    def of(sandboxes: int) -> "Plan":
        """A full run takes minutes; one of few sandboxes is over within one."""
        return Plan(sandboxes, 1.0 if sandboxes >= 200 else 0.4 if sandboxes >= 40 else 0.18)

    def jobs(self, sandbox: int) -> list[Job]:
        """Those of one sandbox, one after the other; the same in every run."""
        chance = random.Random(SEED + sandbox)
        makers = [self._steady, self._quiet, self._bulk, self._short, self._quiet]
        chance.shuffle(makers)
        return [make(f"s{sandbox:04}-j{number}", chance) for number, make in enumerate(makers)]

    def all(self) -> Iterator[Job]:
        """Every job of every sandbox."""
        for sandbox in range(self.sandboxes):
            yield from self.jobs(sandbox)

    def _short(self, mark: str, chance: random.Random) -> Job:
        code = chance.choice((0, 0, 3))
        return Job(mark, "short", f"echo {mark}-said; echo {mark}-complained >&2",
                   f"{mark}-said\n{mark}-complained\n".encode(), code, 0.0)  # fmt: skip

    def _steady(self, mark: str, chance: random.Random) -> Job:
        """A line now and then."""
        count, gap = chance.randint(8, 16), chance.uniform(3.0, 6.0) * self.pace
        script = f'i=0; while [ $i -lt {count} ]; do echo "{mark} l\u00ednea $i"; i=$((i+1)); sleep {gap:.2f}; done'
        output = "".join(f"{mark} l\u00ednea {number}\n" for number in range(count))
        return Job(mark, "steady", script, output.encode(), chance.choice((0, 7)), count * gap)

    def _quiet(self, mark: str, chance: random.Random) -> Job:
        """Says nothing until its end: a caller's long poll has nothing to answer with, for a long time."""
        seconds = chance.uniform(35.0, 60.0) * self.pace
        return Job(mark, "quiet", f"sleep {seconds:.1f}; echo {mark}-woke", f"{mark}-woke\n".encode(), 0, seconds)

    def _bulk(self, mark: str, chance: random.Random) -> Job:
        """Much at once; now and then more than a record keeps. Its end cuts a character in half."""
        size = chance.choice((20_001, 60_002, 180_003, 400_001))
        line = f"{mark} \u00e9\u20ac\n".encode()
        output = (line * (size // len(line) + 1))[:size]
        return Job(mark, "bulk", f"yes '{mark} \u00e9\u20ac' | head -c {size}", output, 0, 0.1)
