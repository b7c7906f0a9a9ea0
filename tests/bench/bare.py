"""The baseline: a bare Starlette handler on Hypercorn as it comes, with a replica's settings of it.

Not on a replica's own connections: a baseline does not move with what is measured against it.
`python -m tests.bench.bare PORT BYTES` answers every request with a JSON object of that size.
"""

import asyncio
import sys
from typing import Any, cast

from hypercorn.asyncio import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.server.connections import hypercorn_config
from service.server.listening import BACKLOG, bind


def app(size: int) -> Starlette:
    """One handler."""
    body = b'{"output":"' + b"x" * (size - 13) + b'"}'

    async def handler(request: Request) -> Response:
        await request.body()
        return Response(body, media_type="application/json")

    return Starlette(routes=[Route("/{path:path}", handler, methods=["GET", "POST"])])


async def main(port: int, size: int) -> None:
    listener = bind("127.0.0.1", port)
    listener.listen(BACKLOG)
    config = hypercorn_config()
    config.bind = [f"fd://{listener.detach()}"]
    await serve(cast(Any, app(size)), config, mode="asgi")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
