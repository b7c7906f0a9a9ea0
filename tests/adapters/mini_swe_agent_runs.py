"""Agents for ``test_minisweagent.py``, with mini-swe-agent's deterministic model. Run in an environment that has it.

Reads a list of runs from stdin: of each the ``config`` of its environment and the ``commands`` that the model asks for.
Writes what came of each, a line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output

AGENT = {
    "system_template": "You are on {{system}} with {{machine}}.",
    "instance_template": "{{task}}",
    "cost_limit": 0,
}


def run(config: dict[str, Any], commands: list[str]) -> dict[str, Any]:
    """Runs an agent to its end."""
    environment = get_environment({"environment_class": "service.adapters.minisweagent.OnceboxEnvironment", **config})
    outputs = [make_output("Next.", [{"command": command}]) for command in commands]
    agent = DefaultAgent(DeterministicModel(outputs=outputs), environment, step_limit=len(commands), **AGENT)
    end = agent.run("Do it.")
    said = [message["extra"] for message in agent.messages if "raw_output" in message.get("extra", {})]
    return {"end": end, "said": said, "first": agent.messages[0]["content"], "log": agent.serialize()}


if __name__ == "__main__":
    for wanted in json.load(sys.stdin):
        print(json.dumps(run(**wanted)), flush=True)
