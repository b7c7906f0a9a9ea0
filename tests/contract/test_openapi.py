"""The OpenAPI document agrees with what is served, and with the contract's own list of routes."""

import re
from typing import Any

import msgspec
import pytest

from service import errors
from service.api import openapi, routes, system
from service.api.application import Application
from tests.unit.api.fakes import FakeCore, Got, ask, post

CONTRACT = """
POST /v1/sandboxes 201
GET /v1/sandboxes 200
GET /v1/sandboxes/{sandbox_id} 200
DELETE /v1/sandboxes/{sandbox_id} 204
POST /v1/sandboxes/{sandbox_id}/renew 200
POST /v1/sandboxes/{sandbox_id}/pause 202
POST /v1/sandboxes/{sandbox_id}/resume 202
PUT /v1/sandboxes/{sandbox_id}/files 200 201
GET /v1/sandboxes/{sandbox_id}/files 200 206
DELETE /v1/sandboxes/{sandbox_id}/files 204
GET /v1/sandboxes/{sandbox_id}/files/info 200
GET /v1/sandboxes/{sandbox_id}/directories 200
POST /v1/sandboxes/{sandbox_id}/directories 200 201
GET /v1/sandboxes/{sandbox_id}/archive 200
PUT /v1/sandboxes/{sandbox_id}/archive 200 202
POST /v1/exec 200
POST /v1/exec-jobs 202
GET /v1/exec-jobs 200
GET /v1/stats 200
GET /v1/exec-jobs/{command_id} 200
GET /v1/exec-jobs/{command_id}/output 200 206
GET /v1/exec-jobs/{command_id}/events 200 204
DELETE /v1/exec-jobs/{command_id} 202
GET /healthz 200
GET /readyz 200
GET /metrics 200
GET /openapi.json 200
GET /docs 200
GET /console 200
"""


@pytest.fixture
def app() -> Application:
    return FakeCore().app()


@pytest.fixture
async def document(app: Application) -> Any:
    return (await ask(app, "GET", "/openapi.json")).json


def operations(document: Any) -> list[tuple[str, str, Any]]:
    return [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_document_has_the_routes_of_the_contract(document: Any) -> None:
    found = set()
    for method, path, operation in operations(document):
        good = sorted(status for status in operation["responses"] if status.startswith("2"))
        found.add(" ".join([method, path, *good]))
    assert found == set(CONTRACT.strip().splitlines())


async def test_every_documented_operation_is_served_and_others_are_405(app: Application, document: Any) -> None:
    for path, methods in document["paths"].items():
        target = re.sub(r"{\w+}", "x", path)
        allowed = (await ask(app, "LINK", target)).headers["allow"].split(", ")
        served = {method.upper() for method in methods} | ({"HEAD"} if "get" in methods else set())
        assert set(allowed) == served, path


def test_every_endpoint_is_documented_once(app: Application, document: Any) -> None:
    documented = {(method, path) for method, path, _ in operations(document)}
    interface = [endpoint for endpoint in app.endpoints if endpoint.documented]
    assert documented == {(endpoint.method, endpoint.shown_path) for endpoint in interface}
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(ids)) == len(ids)
    assert all(operation["summary"] for _, _, operation in operations(document))


def test_every_reference_leads_somewhere(document: Any) -> None:
    names = set(document["components"]["schemas"])
    for reference in re.findall(r'"\$ref":"([^"]+)"', msgspec.json.encode(document).decode()):
        assert reference.removeprefix("#/components/schemas/") in names


def test_parameters_of_paths_are_declared(document: Any) -> None:
    for method, path, operation in operations(document):
        named = {item["name"] for item in operation["parameters"] if item["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", path)), (method, path)


def test_query_parameters_carry_their_limits(document: Any) -> None:
    by_name = {item["name"]: item for item in document["paths"]["/v1/exec-jobs/{command_id}"]["get"]["parameters"]}
    assert by_name["wait"]["schema"]["maximum"] == 30
    assert by_name["limit"]["schema"]["maximum"] == 8 * 1024 * 1024
    assert by_name["encoding"]["schema"]["enum"] == ["base64", "utf8"]
    assert by_name["cursor"]["description"]


def test_every_problem_code_of_the_contract_is_documented_somewhere(document: Any) -> None:
    documented = set()
    for _, _, operation in operations(document):
        for status, response in operation["responses"].items():
            problem = response.get("content", {}).get("application/problem+json")
            if problem is not None:
                codes = problem["schema"]["allOf"][1]["properties"]["code"]["enum"]
                documented |= set(codes)
                for code in codes:
                    assert errors.BY_CODE[code].status == int(status) or code == "INVALID_REQUEST"
    # These belong to no route: they say that there is none.
    assert documented | {"NOT_FOUND", "METHOD_NOT_ALLOWED"} == set(errors.BY_CODE)


JSON = ("content-type", "application/json")
TROUBLE: list[dict[str, Any]] = [
    {"target": "?surely_unknown=1"},
    {"headers": [("Host", "evil.example")]},
    {"body": [b"{"], "headers": [JSON, ("content-length", "1")]},
    {"body": [b"[]"], "headers": [JSON, ("content-length", "2")]},
    {"body": [b"x"], "headers": [("content-type", "text/plain"), ("content-length", "1")]},
    {"headers": [JSON, ("content-length", "9999999")], "body": [b"{}"]},
    {"headers": [("Idempotency-Key", "a b")]},
]
BODIES = {
    "/v1/sandboxes": b"{}",
    "/v1/sandboxes/{sandbox_id}/renew": b'{"timeout":60}',
    "/v1/sandboxes/{sandbox_id}/directories": b'{"path":"a"}',
    "/v1/exec": b'{"sandbox_id":"a","command":"b"}',
    "/v1/exec-jobs": b'{"sandbox_id":"a","command":"b"}',
}


async def test_every_problem_that_a_route_answers_is_documented_there(app: Application, document: Any) -> None:
    for method, path, operation in operations(document):
        target = re.sub(r"{\w+}", "x", path)
        for trouble in TROUBLE if method == "POST" else TROUBLE[:2]:
            request = {**trouble, "target": target + trouble.get("target", "")}
            got = await ask(app, method, **request)
            if got.status >= 400:
                assert documented(operation, got), (method, path, trouble, got.body)


async def test_every_problem_of_the_core_that_a_route_documents_comes_out_of_it(document: Any) -> None:
    for endpoint in filter(lambda each: each.documented, FakeCore().app().endpoints):
        operation = document["paths"][endpoint.shown_path][endpoint.method.lower()]
        problems: list[type[errors.OnceboxError]] = [*endpoint.problems, errors.Internal]
        for error in problems if endpoint.tenant else []:
            core = FakeCore(error=error())
            target = re.sub(r"{\w+}", "x", endpoint.shown_path) + query(operation)
            body = BODIES.get(endpoint.shown_path, b"{}")
            got = await (
                post(core.app(), target, body) if endpoint.takes_body else ask(core.app(), endpoint.method, target)
            )
            assert got.status == error.status
            assert documented(operation, got), (endpoint.shown_path, error)


def query(operation: Any) -> str:
    """What of the query is needed."""
    needed = [item["name"] for item in operation["parameters"] if item["in"] == "query" and item["required"]]
    return "?" + "&".join(f"{name}=x" for name in needed) if needed else ""


def documented(operation: Any, got: Got) -> bool:
    response = operation["responses"].get(str(got.status), {})
    problem = response.get("content", {}).get("application/problem+json")
    if problem is None:
        return False
    return got.json["code"] in problem["schema"]["allOf"][1]["properties"]["code"]["enum"]


def test_keys_are_optional_and_probes_need_none(document: Any) -> None:
    assert document["paths"]["/v1/exec"]["post"]["security"] == [{}, {"key": []}]
    assert document["paths"]["/healthz"]["get"]["security"] == []


def test_the_table_is_the_only_list(app: Application) -> None:
    nowhere = system.Documents(b"", "")
    table = routes.table(system.ReadyHandler(lambda: False), nowhere)
    assert openapi.describe(table) == openapi.describe(app.endpoints)


async def test_the_page_for_people_needs_nothing_from_elsewhere(app: Application, document: Any) -> None:
    got = await ask(app, "GET", "/docs")
    page = got.body.decode()
    assert got.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in got.headers["content-security-policy"]
    assert "<script" not in page
    assert set(re.findall(r'(?:src|href)="([^#"][^"]*)"', page)) == {"/openapi.json"}
    for _, path, operation in operations(document):
        assert f"<code>{path}</code>" in page
        assert f'id="{operation["operationId"]}"' in page
    for code in errors.BY_CODE:
        assert f'id="{code}"' in page, "a problem's type leads to its place here"
    for target in re.findall(r'href="#([^"]+)"', page):
        assert f'id="{target}"' in page
