"""The baseline: a bare Starlette handler on the same connections that a replica has.

`python -m tests.bench.bare PORT BYTES` answers every request with a JSON object of that size.
"""

import asyncio
import sys

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.server.connections import Connections
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
    Connections(app(size), listener).open()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
