"""The OpenAPI 3.1 document, from the table of routes and the message types alone."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from http import HTTPStatus
from types import UnionType
from typing import Any, get_args

import msgspec

import service
from service import errors, messages
from service.api import docs, routes, system
from service.api.problems import PROBLEM_JSON

REF = "#/components/schemas/{name}"

ANYWHERE: routes.Errors = (errors.InvalidRequest, errors.Internal, errors.Forbidden)
"""Whatever is asked for."""
ASKED: routes.Errors = (errors.Unauthenticated, errors.RateLimited)
"""Wherever it matters who asks."""
POSTED: routes.Errors = (
    errors.NotJson,
    errors.InvalidIdempotencyKey,
    errors.PayloadTooLarge,
    errors.UnsupportedMediaType,
)


@functools.cache
def documents() -> tuple[bytes, str]:
    """The document as JSON, and as a page."""
    nowhere = system.Documents(b"", "")
    document = describe(routes.table(system.ReadyHandler(lambda: False), nowhere))
    return msgspec.json.encode(document), docs.page(document)


def describe(endpoints: Sequence[routes.Endpoint[Any]]) -> dict[str, Any]:
    """The OpenAPI document of ``endpoints``."""
    endpoints = [endpoint for endpoint in endpoints if endpoint.documented]
    kinds = _kinds(endpoints)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REF)
    by_kind = dict(zip(map(_name, kinds), schemas, strict=True))
    for endpoint in endpoints:
        if len(parts := _parts(endpoint.answer)) > 1:
            by_kind[_name(endpoint.answer)] = {"anyOf": [by_kind[_name(part)] for part in parts]}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.shown_path, {})[endpoint.method.lower()] = _operation(endpoint, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Oncebox",
            "version": service.__version__,
            "description": "Sandboxes that are created once, and commands that run once. "
            "Every route under `/v1` answers without that prefix too.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))


def _kinds(endpoints: Sequence[routes.Endpoint[Any]]) -> list[Any]:
    """Every type that has a schema: bodies and answers (parameters are described where they are used)."""
    bodies = [endpoint.kind for endpoint in endpoints if endpoint.takes_body]
    answers = [endpoint.answer for endpoint in endpoints if endpoint.answer is not None]
    answers += [other for endpoint in endpoints for other in endpoint.other_answers.values()]
    events = [messages.OutputEvent, messages.ExecStart, messages.ExecText]
    kinds = [part for kind in [*bodies, *answers, *events, messages.Problem] for part in _parts(kind)]
    return list({_name(kind): kind for kind in kinds}.values())


def _parts(kind: Any) -> tuple[Any, ...]:
    """The members of a union; else the type itself."""
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def _operation(endpoint: routes.Endpoint[Any], schemas: dict[str, Any]) -> dict[str, Any]:
    handler = endpoint.handler
    area = handler.__module__.rpartition(".")[2]
    operation: dict[str, Any] = {
        "operationId": f"{area}_{handler.__name__.strip('_')}",
        "tags": [area],
        "summary": (handler.__doc__ or "").strip(),
        "parameters": _parameters(endpoint),
        "responses": _responses(endpoint, schemas),
    }
    if endpoint.takes_body and endpoint.kind.__struct_fields__:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[_name(endpoint.kind)]}},
        }
    if endpoint.raw:
        operation["requestBody"] = {"required": True, "content": {media: {} for media in endpoint.raw}}
    operation["security"] = [{}, {"key": []}] if endpoint.tenant else []
    return operation


def _parameters(endpoint: routes.Endpoint[Any]) -> list[dict[str, Any]]:
    found = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]
    if endpoint.takes_body:
        key = {"type": "string", "pattern": "^[!-~]{1,255}$"}
        found.append({"name": "Idempotency-Key", "in": "header", "required": False, "schema": key})
    found += [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}} for name in endpoint.headers
    ]
    return found + _query(endpoint.query if endpoint.takes_body else endpoint.kind)


def _query(kind: type[msgspec.Struct]) -> list[dict[str, Any]]:
    schema = msgspec.json.schema(kind)
    definitions = schema.get("$defs", {})
    own = definitions.pop(kind.__name__)
    found = []
    for name, shown in own["properties"].items():
        shown = _inlined(shown, definitions)
        needed = name in own.get("required", ())
        parameter = {"name": name, "in": "query", "required": needed, "schema": shown}
        if "description" in shown:
            parameter["description"] = shown.pop("description")
        found.append(parameter)
    return found


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """``schema`` with what it refers to put in place."""
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        target = definitions[schema["$ref"].rpartition("/")[2]]
        return {**_inlined(target, definitions), **{key: schema[key] for key in schema if key != "$ref"}}
    return {key: _inlined(value, definitions) for key, value in schema.items()}


def _responses(endpoint: routes.Endpoint[Any], schemas: dict[str, Any]) -> dict[str, Any]:
    schema = {} if endpoint.answer is None else schemas[_name(endpoint.answer)]
    responses: dict[str, Any] = {}
    for status, other in endpoint.other_answers.items():
        content = {endpoint.media: {"schema": schemas[_name(other)]}}
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    for status in (endpoint.status, *endpoint.other_statuses):
        response: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        if status != HTTPStatus.NO_CONTENT:
            response["content"] = {endpoint.media: {"schema": schema} if schema else {}}
            if endpoint.other_media is not None:
                response["content"][endpoint.other_media] = {}
        responses[str(status)] = response
    for status, codes in _problems(endpoint).items():
        responses.setdefault(
            str(status),
            {
                "description": "; ".join(codes),
                "content": {PROBLEM_JSON: {"schema": _problem_schema(codes)}},
            },
        )
    if endpoint.makes:
        for response in responses.values():
            response["headers"] = {
                "Idempotency-Key": _header("The key in force: the caller's, or one made for it."),
                "Idempotent-Replayed": _header("`true` where this very request did not make the answer."),
            }
        if endpoint.status != HTTPStatus.OK:
            responses[str(endpoint.status)]["headers"]["Location"] = _header("Where what was made is found.")
    return responses


def _header(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}}


def _problem_schema(codes: list[str]) -> dict[str, Any]:
    return {
        "allOf": [
            {"$ref": REF.format(name="Problem")},
            {"type": "object", "properties": {"code": {"enum": codes}}},
        ]
    }


def _problems(endpoint: routes.Endpoint[Any]) -> dict[int, list[str]]:
    possible: list[type[errors.OnceboxError]] = [*ANYWHERE, *endpoint.problems]
    if endpoint.tenant:
        possible += ASKED
    if endpoint.takes_body:
        possible += POSTED
    by_status: dict[int, list[str]] = {}
    for error in possible:
        codes = by_status.setdefault(error.status, [])
        if error.code not in codes:
            codes.append(error.code)
    return dict(sorted(by_status.items()))
