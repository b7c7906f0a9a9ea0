"""``oncebox keys``: API keys of tenants."""

from __future__ import annotations

import click

from service.cli.arguments import Group
from service.cli.output.terminal import print_json, put
from service.cli.problems import Trouble
from service.cli.state import json_option
from service.tenants import lines_for, new_key


@click.group(cls=Group)
def keys() -> None:
    """API keys of tenants."""


@keys.command(
    epilog="""\b
Examples:
  oncebox keys new acme            # the key, then the lines for the tenants file
  oncebox keys new acme --json | jq -r .key
"""
)
@click.argument("tenant")
@json_option
def new(tenant: str, as_json: bool) -> None:
    """Make a key for TENANT. It is shown this once: the tenants file holds only its digest."""
    key = new_key()
    try:
        lines = lines_for(tenant, key)
    except ValueError as error:
        raise Trouble(f"{str(error)[:1].upper()}{str(error)[1:]}.") from error
    if as_json:
        print_json({"tenant": tenant, "key": key, "lines": lines})
        return
    put(key)
    put("\n# The key is shown this once. For the file that ONCEBOX_TENANTS names; where it has this table")
    put(f"# already, add the digest to its `keys`:\n{lines.rstrip()}")
