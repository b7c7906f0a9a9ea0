"""The OpenAPI document as one page for people: no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any

from service.errors import BY_CODE

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd } code, pre { font: 13px/1.5 ui-monospace, monospace }
section { margin: 1.5rem 0 } table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #eee }
.method { display: inline-block; min-width: 4.5rem; font-weight: 700 }
@media (prefers-color-scheme: dark) { body { background: #161616; color: #ddd } a { color: #8ab4f8 }
td, th { border-color: #333 } h2 { border-color: #444 } }
"""


def page(document: dict[str, Any]) -> str:
    """``document`` as HTML."""
    info = document["info"]
    version = escape(document["openapi"])
    operations = [
        _operation(path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [_schema(name, schema) for name, schema in sorted(document["components"]["schemas"].items())]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{_text(info['description'])}</p>"
        f'<p>For programs: <a href="/openapi.json">openapi.json</a> (OpenAPI {version}).</p>'
        f"<h2>Routes</h2>{''.join(operations)}<h2>Problems</h2>{_problems()}<h2>Types</h2>{''.join(schemas)}"
        "</body></html>"
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    rows = [
        _row(
            f"<code>{escape(item['name'])}</code>",
            escape(item["in"]),
            _kind(item["schema"]),
            _text(item.get("description", "")),
        )
        for item in operation["parameters"]
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        rows.append(_row("body", "JSON", _kind(body), ""))
    answers = [
        _row(f"<code>{status}</code>", _text(response["description"]), _content(response), "")
        for status, response in operation["responses"].items()
    ]
    return (
        f'<section id="{escape(operation["operationId"])}"><h3>'
        f'<span class="method">{escape(method.upper())}</span> <code>{escape(path)}</code></h3>'
        f"<p>{_text(operation['summary'])}</p>"
        f"<table>{''.join(rows)}{''.join(answers)}</table></section>"
    )


def _content(response: dict[str, Any]) -> str:
    kinds = []
    for media, content in response.get("content", {}).items():
        if media.endswith("problem+json"):
            return '<a href="#schema-Problem">Problem</a>'
        kinds.append(_kind(content["schema"]) if "schema" in content else escape(media))
    return ", ".join(kinds)


def _problems() -> str:
    rows = [
        f'<tr id="{escape(code)}"><td><code>{escape(code)}</code></td><td>{error.status}</td>'
        f"<td>{_text((error.__doc__ or '').strip())}{' May be retried.' if error.retryable else ''}</td></tr>"
        for code, error in sorted(BY_CODE.items())
    ]
    return f"<table>{''.join(rows)}</table>"


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = [
        _row(f"<code>{escape(field)}</code>", _kind(kind), "required" if field in required else "", "")
        for field, kind in schema.get("properties", {}).items()
    ]
    if "enum" in schema:
        rows.append(_row(_kind(schema), "", "", ""))
    return (
        f'<section id="schema-{escape(name)}"><h3>{escape(name)}</h3>'
        f"<p>{_text(schema.get('description', ''))}</p><table>{''.join(rows)}</table></section>"
    )


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(item) for item in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    limits = [
        f"{words} {schema[name]}"
        for name, words in (
            ("minimum", "from"),
            ("maximum", "to"),
            ("minLength", "length from"),
            ("maxLength", "to"),
        )
        if name in schema
    ]
    return escape(" ".join([str(schema.get("type", "any")), *limits]))


def _row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _text(text: str) -> str:
    """Text with `` `code` `` in it."""
    parts = escape(text.replace("``", "`")).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
