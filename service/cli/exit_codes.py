"""How a job ended, as an exit code of ``oncebox run`` and as words. Pure functions."""

from __future__ import annotations

from service.cli.problems import TROUBLE
from service.messages import Job, JobState, Reason

TIMED_OUT = 124
"""As of timeout(1)."""

REASONS = {
    Reason.ENGINE_UNAVAILABLE: "the engine could not be reached; nothing was run, try again",
    Reason.ENGINE_REJECTED: "the engine refused the command; nothing was run",
    Reason.START_FAILED: "the engine could not start the command; is --cwd right?",
    Reason.SANDBOX_NOT_RUNNING: "its sandbox was not running; `oncebox sandboxes ls` shows its state",
    Reason.REPLICA_LOST: "the replica at work ended before anything was sent; try again",
    Reason.NEVER_STARTED: "it was lost on its way and can no longer start; try again",
    Reason.NO_FENCE: "the sandbox's disk is full, so nothing was run; make room in it",
    Reason.CANCELLED_BEFORE_START: "nothing was run",
    Reason.OUTCOME_UNKNOWN: "the engine's answer was lost; it is being found out",
    Reason.SANDBOX_GONE: "its sandbox was deleted, ended or expired",
    Reason.CONTAINER_RESTARTED: "its container was restarted, and the command was in the one before",
    Reason.EXECD_RESTARTED: "the sandbox's daemon restarted, and the command left no exit code",
    Reason.FENCE_WIPED: "its fence was removed, and no process of it was left at its deadline",
    Reason.ENGINE_UNREACHABLE: "the sandbox's daemon did not answer for too long",
    Reason.START_NOT_CONFIRMED: "it died, or was killed, in the moment of its start",
}
"""What a reason means to the person who started the job."""

WORDS = {
    JobState.PENDING: "pending",
    JobState.RUNNING: "running",
    JobState.TIMED_OUT: "timed out",
    JobState.CANCELLED: "cancelled",
    JobState.FAILED: "never started",
    JobState.UNKNOWN: "unknown (it may have started)",
    JobState.LOST: "lost (it started; how it ended is not known)",
}


def in_words(job: Job) -> str:
    """The state with all that it says: ``exited with 3``, ``timed out after 60 s``."""
    if job.state is JobState.EXITED:
        return f"exited with {job.exit_code}"
    words = WORDS[job.state]
    if job.state is JobState.TIMED_OUT and job.timeout:
        words += f" after {job.timeout} s"
    return words


def because(job: Job) -> str:
    """Why, where there is a reason; else nothing."""
    return REASONS.get(job.reason, job.reason.value) if job.reason else ""


def exit_code(job: Job) -> tuple[int, str]:
    """The exit code for a job that is over, and what to say on stderr (nothing, where it ended by itself)."""
    if job.state is JobState.EXITED and job.exit_code is not None:
        return job.exit_code & 0xFF, ""
    if job.state is JobState.TIMED_OUT:
        return TIMED_OUT, f"the command {in_words(job)}; --timeout gives it more."
    said = f"the job {'was' if job.state in (JobState.CANCELLED, JobState.LOST) else 'is'} {in_words(job)}"
    if job.state is JobState.CANCELLED:
        said += " by somebody else"
    if job.state is JobState.FAILED:
        said = "the command was never started"
    reason = because(job)
    return TROUBLE, f"{said}: {reason}." if reason else f"{said}."
