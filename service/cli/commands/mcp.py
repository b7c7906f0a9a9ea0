"""``oncebox mcp``: sandboxes and jobs as tools of the Model Context Protocol."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address

import click

from service.cli.arguments import Command
from service.cli.extras import extra
from service.cli.output.terminal import say
from service.cli.target import configured_target, connect

PATIENCE = 60.0
"""Seconds in which a request to the service is tried again: a model waits for the answer."""


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  oncebox mcp                          # on stdin and stdout, as a client starts it
  oncebox mcp --http 127.0.0.1:8800    # streamable HTTP, at /mcp
""",
)
@click.option("--http", "bind", metavar="H:P", help="Serve streamable HTTP there, on loopback only.")
def mcp(bind: str | None) -> None:
    """Offer sandboxes and commands to a model as tools (MCP). A command outlives the conversation."""
    asyncio.run(_serve(None if bind is None else loopback(bind)))


def loopback(bind: str) -> tuple[str, int]:
    """Host and port. Raises ``click.UsageError`` where others could reach it: whoever does, acts with this key."""
    host, _, port = bind.rpartition(":")
    try:
        local = host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        local = False
    if not local or not port.isdecimal() or int(port) > 65_535:
        raise click.UsageError("--http is a loopback address and a port, such as 127.0.0.1:8800.")
    return host.strip("[]"), int(port)


async def _serve(address: tuple[str, int] | None) -> None:
    with extra("mcp", "`oncebox mcp`"):
        from service.adapters.mcp.server import server
    async with connect(configured_target(), deadline=PATIENCE) as client:
        tools = server(client)
        if address is None:
            await tools.run_stdio_async()
            return
        host, port = address
        say(f"the tools are at http://{f'[{host}]' if ':' in host else host}:{port}/mcp")
        await tools.run_streamable_http_async(host=host, port=port)
