"""Evaluations for ``test_inspect.py``, with Inspect's mock model. Loaded in an environment that has Inspect."""

from __future__ import annotations

import os
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash
from inspect_ai.util import SandboxEnvironmentSpec, sandbox

from service.adapters.inspect import OnceboxConfig

FILES = {"numbers": "2 3\n", "add.sh": "read a b <numbers; echo $((a + b))\n"}


@scorer(metrics=[accuracy()])
def the_sum_is_right() -> Any:
    """Reads what the tool left in the sandbox."""

    async def score(state: Any, target: Any) -> Score:
        found = await sandbox().read_file("sum")
        return Score(value=int(found.strip() == target.text), answer=await sandbox().read_file("once"))

    return score


def asked(*commands: str) -> Any:
    """A model that calls the tool with these commands, and is done."""
    outputs = [ModelOutput.for_tool_call("mockllm/model", "bash", {"command": command}) for command in commands]
    outputs.append(ModelOutput.from_content("mockllm/model", "It is done."))
    for output in outputs:
        output.usage = ModelUsage()  # else tokens are counted, with a table from the network
    return get_model("mockllm/model", custom_outputs=outputs)


@task
def sums(key: str = "", wait: str = "true") -> Task:
    """A file, a setup script, a tool and a scorer; ``wait``: what the model's second command is."""
    work = "test -e ready && sh add.sh >sum && date +%N >>once"
    return Task(
        dataset=[Sample("Add the numbers.", id="a", target="5", files=FILES, setup="echo >ready; echo >>setups")],
        solver=[use_tools(bash(timeout=120)), generate()],
        scorer=the_sum_is_right(),
        model=asked(work, wait),
        sandbox=SandboxEnvironmentSpec("oncebox", OnceboxConfig(key=key or None, url=os.environ["ONCEBOX_URL"])),
    )
