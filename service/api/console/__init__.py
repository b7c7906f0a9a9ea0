"""``GET /console``: the page for people, and the files that it is made of, as they stand in this folder.

The page is the same for everybody: what it shows it asks for like any other client, with the key that is typed into
it. Its policy lets nothing in from elsewhere, and no text become markup or script.
"""

from __future__ import annotations

import functools
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from service.api.exchange import Call
    from service.api.parameters import Nothing

MEDIA = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


@functools.cache
def pages() -> dict[str, tuple[bytes, dict[str, str]]]:
    """Each path below ``/console`` with its bytes and its headers; ``""`` is the page itself."""
    found = {}
    for file in files(__package__).iterdir():
        name, dot, ending = file.name.rpartition(".")
        if (media := MEDIA.get(dot + ending)) is None:
            continue
        body = file.read_bytes()
        tag = f'"{hashlib.sha256(body).hexdigest()}"'
        headers = {**HEADERS, "Content-Type": f"{media}; charset=utf-8", "ETag": tag}
        found["" if name == "index" else f"/{file.name}"] = (body, headers)
    return found


def page(path: str = "") -> Callable[[Call, Nothing], Awaitable[Response]]:
    """The handler of one of ``pages()``."""

    async def console(call: Call, _: Nothing) -> Response:
        """The page for people; what it shows it asks for with the key that is typed into it."""
        body, headers = pages()[path]
        if call.exchange.header("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers)

    return console
