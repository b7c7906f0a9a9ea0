"""The one table of routes: Starlette's routes, the OpenAPI document and the checks of input come from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from starlette.responses import Response
from starlette.routing import Route

from service import errors, messages
from service.api import archives, console, execs, files, jobs, parameters, sandboxes, scraping, system
from service.api.decoding import decode_body, decode_query
from service.api.exchange import Call, Exchange
from service.api.problems import problem_response
from service.api.sse import EVENT_STREAM

if TYPE_CHECKING:
    import msgspec
    from starlette.types import ASGIApp, Receive, Scope, Send

    from service.core.app import Core

S = TypeVar("S", bound="msgspec.Struct")
Errors = tuple[type[errors.OnceboxError], ...]

PREFIX = "/v1"
CONSOLE = "/console"

STORE: Errors = (errors.StoreUnavailable,)
SANDBOX: Errors = (errors.SandboxNotFound, errors.EngineUnavailable, errors.StoreUnavailable)
JOB: Errors = (errors.JobNotFound, errors.EngineUnavailable, errors.StoreUnavailable)
ONCE: Errors = (
    errors.IdempotencyKeyReused,
    errors.Forbidden,
    errors.RateLimited,
    errors.QuotaExceeded,
    errors.EngineRejected,
    errors.EngineUnavailable,
    errors.OutcomeUnknown,
    errors.StoreUnavailable,
)


@dataclass(frozen=True)
class Endpoint(Generic[S]):
    """One method of one path. ``kind`` is the type of its body (POST) or of its query (all others)."""

    method: str
    path: str
    handler: Callable[..., Awaitable[ASGIApp]]
    kind: type[S]
    status: int
    answer: Any = None
    """Type of the answer's body; None: none, or not JSON."""
    problems: Errors = ()
    makes: bool = False
    """Something comes into being: every answer carries the Idempotency-Key in force."""
    tenant: bool = True
    """Needs to know who asks, and is there with and without ``/v1``."""
    documented: bool = True
    """Part of the interface."""
    media: str = "application/json"
    other_statuses: Sequence[int] = field(default=())
    other_media: str | None = None
    """What the answer is where ``Accept`` asks for it."""
    other_answers: Mapping[int, Any] = field(default_factory=dict)
    """Types of the answer's body, by status, where there are others."""
    headers: Sequence[str] = field(default=())
    """Request headers with a meaning here."""
    raw: Sequence[str] = field(default=())
    """The types of a body that the handler reads by itself; none: it is JSON, or there is none."""
    query: type[msgspec.Struct] = parameters.Nothing
    """The query of a POST that has one beside its body; its handler gets that, too."""

    @property
    def takes_body(self) -> bool:
        """POSTs take their input from the body."""
        return self.method == "POST"

    @property
    def shown_path(self) -> str:
        """As documented."""
        return PREFIX + self.path if self.tenant else self.path

    @property
    def paths(self) -> list[str]:
        """Everywhere it answers."""
        return [PREFIX + self.path, self.path] if self.tenant else [self.path]

    async def answer_to(self, call: Call, scope: Scope) -> ASGIApp:
        """Decode the input, and let the handler answer."""
        body = call.exchange.body
        if not self.takes_body:
            return await self.handler(call, decode_query(scope["query_string"], self.kind))
        query = decode_query(scope["query_string"], self.query)
        if not body and self.kind is parameters.Nothing:
            body = b"{}"
        if not body and not call.exchange.has_body and "content-type" not in call.exchange.headers:
            raise errors.UnsupportedMediaType("A body in application/json is needed")
        more = () if self.query is parameters.Nothing else (query,)
        return await self.handler(call, decode_body(body, self.kind), *more)


def table(
    readiness: system.ReadyHandler, documents: system.Documents, scrape: scraping.Scrape | None = None
) -> list[Endpoint[Any]]:
    """Every route there is."""
    return [
        *_sandboxes(),
        *_files(),
        *_commands(),
        *_jobs(),
        *_system(readiness, documents, scrape or scraping.Scrape()),
        *_console(),
    ]


def _sandboxes() -> list[Endpoint[Any]]:
    one, nothing = "/sandboxes/{sandbox_id}", parameters.Nothing
    moves: Errors = (*SANDBOX, errors.SandboxNotRunning, errors.EngineRejected)
    return [
        Endpoint(
            "POST", "/sandboxes", sandboxes.create, messages.CreateSandbox, 201, messages.Sandbox,
            (*ONCE, errors.IdempotencyInProgress), makes=True,
        ),
        Endpoint(
            "GET", "/sandboxes", sandboxes.list_, parameters.SandboxesQuery, 200, messages.SandboxPage,
            (errors.EngineUnavailable, *STORE), headers=("Cache-Control",),
        ),
        Endpoint("GET", one, sandboxes.get, nothing, 200, messages.Sandbox, SANDBOX),
        Endpoint("DELETE", one, sandboxes.delete, nothing, 204, None, SANDBOX),
        Endpoint(
            "POST", one + "/renew", sandboxes.renew, messages.RenewSandbox, 200, messages.Sandbox, moves
        ),
        Endpoint("POST", one + "/pause", sandboxes.pause, nothing, 202, messages.Sandbox, moves),
        Endpoint("POST", one + "/resume", sandboxes.resume, nothing, 202, messages.Sandbox, moves),
    ]  # fmt: skip


def _files() -> list[Endpoint[Any]]:
    one = "/sandboxes/{sandbox_id}"
    path: Errors = (*SANDBOX, errors.SandboxNotRunning, errors.EngineRejected, errors.FilePermissionDenied)
    there: Errors = (*path, errors.FileNotFound, errors.NotADirectory)
    written: Errors = (*path, errors.NotADirectory, errors.DiskFull)
    file: Errors = (errors.IsADirectory, errors.NotAFile, errors.PreconditionFailed)
    return [
        Endpoint(
            "PUT", one + "/files", files.put, parameters.PutFileQuery, 200, messages.File,
            (*written, *file, errors.FileNotFound, errors.FileTooLarge, errors.UnsupportedMediaType),
            other_statuses=(201,), headers=("If-Match", "If-None-Match"), raw=("*/*",),
        ),
        Endpoint(
            "GET", one + "/files", files.get, parameters.FileQuery, 200, None,
            (*there, *file, errors.RangeNotSatisfiable), media="application/octet-stream", other_statuses=(206, 304),
            headers=("Range", "If-Range", "If-Match", "If-None-Match"),
        ),
        Endpoint(
            "DELETE", one + "/files", files.remove, parameters.RemoveFileQuery, 204, None,
            (*path, errors.NotADirectory, errors.NotAFile, errors.DirectoryNotEmpty),
        ),
        Endpoint("GET", one + "/files/info", files.info, parameters.FileQuery, 200, messages.File, there),
        Endpoint(
            "GET", one + "/directories", files.list_, parameters.DirectoryQuery, 200, messages.FilePage, there
        ),
        Endpoint(
            "POST", one + "/directories", files.make_directory, messages.MakeDirectory, 201, messages.File,
            (*written, errors.FileNotFound), other_statuses=(200,), query=parameters.UserQuery,
        ),
        Endpoint(
            "GET", one + "/archive", archives.get, parameters.FileQuery, 200, None,
            (*there, errors.NotAFile, errors.DiskFull), media="application/x-tar",
        ),
        Endpoint(
            "PUT", one + "/archive", archives.put, parameters.FileQuery, 200, messages.Unpacked,
            (*written, *file, *ONCE, errors.FileNotFound, errors.FileTooLarge, errors.UnsupportedMediaType),
            other_answers={202: messages.Job}, raw=archives.TYPES,
        ),
    ]  # fmt: skip


def _commands() -> list[Endpoint[Any]]:
    problems: Errors = (*ONCE, errors.SandboxNotFound, errors.SandboxNotRunning)
    return [
        Endpoint(
            "POST", "/exec", execs.run, messages.Exec, 200, messages.ExecResult, problems,
            makes=True, other_media=EVENT_STREAM,
        ),
        Endpoint(
            "POST", "/exec-jobs", jobs.submit, messages.SubmitJob, 202, messages.Job, problems, makes=True
        ),
    ]  # fmt: skip


def _jobs() -> list[Endpoint[Any]]:
    one, nothing = "/exec-jobs/{command_id}", parameters.Nothing
    output = messages.JobOutput | messages.ExecJobOutput
    return [
        Endpoint(
            "GET", "/stats", jobs.stats, nothing, 200, messages.TenantStats, (errors.EngineUnavailable, *STORE)
        ),
        Endpoint("GET", "/exec-jobs", jobs.list_, parameters.JobsQuery, 200, messages.JobPage, STORE),
        Endpoint("GET", one, jobs.get, parameters.JobQuery, 200, output, JOB),
        Endpoint("DELETE", one, jobs.cancel, nothing, 202, messages.Job, JOB),
        Endpoint(
            "GET", one + "/output", jobs.output, parameters.OutputQuery, 200, None, (*JOB, errors.RangeNotSatisfiable),
            media="application/octet-stream", other_statuses=(206,), headers=("Range",),
        ),
        Endpoint(
            "GET", one + "/events", jobs.events, parameters.EventsQuery, 200, None, JOB,
            media=EVENT_STREAM, other_statuses=(204,), headers=("Last-Event-ID",),
        ),
    ]  # fmt: skip


def _system(
    readiness: system.ReadyHandler, documents: system.Documents, scrape: scraping.Scrape
) -> list[Endpoint[Any]]:
    nothing = parameters.Nothing
    return [
        Endpoint("GET", "/healthz", system.healthz, nothing, 200, messages.Health, tenant=False),
        Endpoint(
            "GET",
            "/readyz",
            readiness.readyz,
            nothing,
            200,
            messages.Health,
            tenant=False,
            other_statuses=(503,),
        ),
        Endpoint("GET", "/openapi.json", documents.openapi, nothing, 200, None, tenant=False),
        Endpoint(
            "GET",
            "/metrics",
            scrape.metrics,
            nothing,
            200,
            None,
            (errors.Unauthenticated,),
            tenant=False,
            media="text/plain",
        ),
        Endpoint("GET", "/docs", documents.docs, nothing, 200, None, tenant=False, media="text/html"),
    ]


def _console() -> list[Endpoint[Any]]:
    return [
        Endpoint(
            "GET", CONSOLE + path, console.page(path), parameters.Nothing, 200, None, tenant=False,
            documented=not path, media="text/html", other_statuses=(304,), headers=("If-None-Match",),
        )
        for path in sorted(console.pages())
    ]  # fmt: skip


class Path:
    """The application behind one path: it finds the endpoint of the method."""

    def __init__(self, core: Core, route: str, endpoints: Iterable[Endpoint[Any]]) -> None:
        self.core = core
        self.route = route
        self.by_method = {endpoint.method: endpoint for endpoint in endpoints}
        if "GET" in self.by_method:
            self.by_method["HEAD"] = self.by_method["GET"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange.of(scope)
        exchange.route = self.route
        endpoint = self.by_method.get(exchange.method)
        if endpoint is None:
            await self._not_allowed()(scope, receive, send)
            return
        call = Call(self.core, scope, receive)
        try:
            answer = await endpoint.answer_to(call, scope)
            await answer(scope, receive, send)
        finally:
            await call.close()

    def _not_allowed(self) -> Response:
        allowed = ", ".join(sorted(self.by_method))
        response = problem_response(errors.MethodNotAllowed(f"This path takes {allowed}"))
        response.headers["Allow"] = allowed
        return response


def starlette_routes(core: Core, endpoints: Sequence[Endpoint[Any]]) -> list[Route]:
    """The table as Starlette's routes, one a path."""
    paths: dict[str, list[Endpoint[Any]]] = {}
    for endpoint in endpoints:
        for path in endpoint.paths:
            paths.setdefault(path, []).append(endpoint)
    polled_first = sorted(paths.items(), key=lambda item: "{command_id}" not in item[0])  # they are tried in order
    return [Route(path, Path(core, served[0].shown_path, served)) for path, served in polled_first]


def route_of(served: Sequence[Route], path: str) -> str | None:
    """The template of the route that has ``path``; None where there is none."""
    for route in served:
        if route.path_regex.match(path) and isinstance(route.endpoint, Path):
            return route.endpoint.route
    return None
