"""What schemathesis's cases need to get anywhere: ids that exist, and commands that do no harm.

Read by schemathesis in its own process (SCHEMATHESIS_HOOKS). The ids come in the environment.
"""

import os
import random
import shlex
from typing import Any

import schemathesis

from tests.fuzz.honest import fault

SANDBOXES = os.environ["ONCEBOX_TEST_FUZZ_SANDBOXES"].split()
JOBS = os.environ["ONCEBOX_TEST_FUZZ_JOBS"].split()
KNOWN = 0.6
"""How often an id is replaced by one that exists."""


@schemathesis.hook
def map_path_parameters(context: schemathesis.HookContext, path_parameters: Any) -> Any:
    """Ids that exist, but where the sandbox would be gone, or (but for the last one) paused, for all other cases."""
    if isinstance(path_parameters, dict) and random.random() < KNOWN:
        deletes = context.operation is not None and context.operation.method.lower() == "delete"
        if "sandbox_id" in path_parameters and not deletes:
            pauses = context.operation is not None and context.operation.path.endswith(("/pause", "/resume"))
            path_parameters["sandbox_id"] = SANDBOXES[-1] if pauses else random.choice(SANDBOXES)
        if "command_id" in path_parameters:
            path_parameters["command_id"] = random.choice(JOBS)
    return path_parameters


@schemathesis.hook
def map_query(context: schemathesis.HookContext, query: Any) -> Any:
    """Nobody waits for 30 s here."""
    if isinstance(query, dict) and isinstance(query.get("wait"), int | float) and 0 < query["wait"] <= 30:
        query["wait"] = 0.01
    return query


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    """Sandboxes that exist and are not waited for, and commands that are arguments of `:`."""
    if not isinstance(body, dict):
        return body
    if isinstance(body.get("sandbox_id"), str) and random.random() < KNOWN:
        body["sandbox_id"] = random.choice(SANDBOXES)
    if isinstance(body.get("wait_ready"), int | float) and 0 < body["wait_ready"] <= 120:
        body["wait_ready"] = 0
    if isinstance(body.get("command"), str) and body["command"].strip() and "\0" not in body["command"]:
        body["command"] = f": {shlex.quote(body['command'])}"
    return body


@schemathesis.check
def no_bug(context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]) -> None:
    """In place of `not_a_server_error`: a machine may be too busy, and has to say so in the documented way."""
    retry_after = next(iter(response.headers.get("retry-after") or []), None)
    found = fault(case.path, response.status_code, retry_after, response.content)
    assert found is None, found
