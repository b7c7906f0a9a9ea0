"""The OpenAPI document as one page for people: no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from service.api.schema_words import in_words
from service.errors import BY_CODE

_STYLE = """
:root { --text: #1c2024; --soft: #60646c; --line: #e0e3e8; --back: #fff; --panel: #f6f7f9; --link: #0b63c5;
--get: #0a7d4f; --post: #0b63c5; --delete: #c02a37 }
@media (prefers-color-scheme: dark) { :root { --text: #e3e5e8; --soft: #a0a6b0; --line: #33373d; --back: #131518;
--panel: #1c1f24; --link: #7db5ff; --get: #5fd3a0; --post: #7db5ff; --delete: #ff8a92 } }
* { box-sizing: border-box }
html { scroll-padding-top: 1rem }
body { font: 15px/1.55 system-ui, sans-serif; margin: 0; color: var(--text); background: var(--back) }
a { color: var(--link); text-decoration: none } a:hover { text-decoration: underline }
code, pre { font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: .7rem 1rem;
overflow-x: auto }
nav { font-size: 13.5px; padding: 1rem; background: var(--panel); border-bottom: 1px solid var(--line) }
nav b { display: block; margin-top: .9rem } nav ul { list-style: none; margin: .2rem 0; padding: 0 }
nav li { white-space: nowrap; overflow: hidden; text-overflow: ellipsis } nav a { color: var(--text) }
main { padding: 1rem 1.2rem 4rem; min-width: 0 }
h1 { margin: .2rem 0 } h1 small { font-size: 1rem; font-weight: 400; color: var(--soft) }
h2 { margin: 3rem 0 1rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem }
h3 { margin: 0; font-size: 1rem } h4 { margin: .9rem 0 .1rem; font-size: 13px; color: var(--soft) }
section { margin: 1.2rem 0; border: 1px solid var(--line); border-radius: 8px; padding: .9rem 1.1rem; overflow-x: auto }
section p { margin: .4rem 0 } section:target { border-color: var(--link) }
h3 code { font-size: 14.5px; overflow-wrap: anywhere }
table { border-collapse: collapse; width: 100% } tr:last-child td { border-bottom: 0 }
tr:target { background: var(--panel) }
td { vertical-align: top; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line) }
td:first-child { white-space: nowrap; width: 10rem }
@media (max-width: 62rem) { nav .types { display: none } td:first-child { width: auto } }
.soft { color: var(--soft) }
.method { display: inline-block; min-width: 3.6rem; font: 700 12px/1.5 ui-monospace, monospace; color: var(--soft) }
.get { color: var(--get) } .post { color: var(--post) } .delete { color: var(--delete) }
@media (min-width: 62rem) { body { display: grid; grid-template-columns: 23rem minmax(0, 60rem) }
nav { position: sticky; top: 0; height: 100vh; overflow-y: auto; border: 0; border-right: 1px solid var(--line) }
main { padding: 1.5rem 2.5rem 6rem } }
"""

_START = """
<p>With API keys, send <code>Authorization: Bearer &lt;key&gt;</code>; without, only this machine is served. Bodies are
<code>application/json</code>. A POST that carries an <code>Idempotency-Key</code> may be sent again as often as needed:
it is carried out once, and later answers carry <code>Idempotent-Replayed: true</code>. Where trying again helps, a
problem says <code>"retryable": true</code>, and <code>Retry-After</code> says when.</p>
<pre># A sandbox, then a command in it
curl -sS $ONCEBOX_URL/v1/sandboxes -H 'Content-Type: application/json' \\
  -H 'Idempotency-Key: box-1' -d '{}'
curl -sS $ONCEBOX_URL/v1/exec-jobs -H 'Content-Type: application/json' \\
  -H 'Idempotency-Key: job-1' -d '{"sandbox_id": "...", "command": "make test"}'
# State and output so far (go on from "cursor"), and the same as a stream
curl -sS "$ONCEBOX_URL/v1/exec-jobs/cmd_...?wait=30"
curl -sSN $ONCEBOX_URL/v1/exec-jobs/cmd_.../events</pre>
"""

_AREAS = {"execs": "Exec", "scraping": "Metrics"}
_KNOWN = {
    "Idempotency-Key": "1 to 255 visible characters, the caller's own: the same key is carried out once.",
    "Last-Event-ID": "The id of the last event seen: go on after it. Browsers send it by themselves.",
    "Range": "`bytes=first-last`, in bytes of the output.",
    "sandbox_id": "The sandbox.",
    "command_id": "The job.",
}
"""What is said of parameters that the document leaves to their names."""


def page(document: dict[str, Any]) -> str:
    """``document`` as HTML."""
    info = document["info"]
    title, version = escape(info["title"]), escape(info["version"])
    operations = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = sorted(document["components"]["schemas"].items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}: API</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>'
        f"{_contents(operations, [name for name, _ in schemas])}<main>"
        f"<h1>{title} <small>{version}</small></h1><p>{_text(info['description'])} "
        f'For programs: <a href="/openapi.json">openapi.json</a> (OpenAPI {escape(document["openapi"])}).</p>{_START}'
        f'<h2 id="routes">Routes</h2>{"".join(_operation(*each) for each in operations)}'
        f'<h2 id="problems">Problems</h2>{_problems()}'
        f'<h2 id="types">Types</h2>{"".join(_schema(*each) for each in schemas)}</main></body></html>'
    )


def _contents(operations: list[tuple[str, str, dict[str, Any]]], schemas: list[str]) -> str:
    areas: dict[str, list[str]] = {}
    for path, method, operation in operations:
        link = f'<a href="#{escape(operation["operationId"])}">{_method(method)} {escape(path)}</a>'
        areas.setdefault(operation["tags"][0], []).append(link)
    parts = [f"<b>{escape(_AREAS.get(area, area.capitalize()))}</b>{_list(links)}" for area, links in areas.items()]
    parts.append('<b><a href="#problems">Problems</a></b><b><a href="#types">Types</a></b><div class="types">')
    parts.append(_list(f'<a href="#schema-{escape(name)}">{escape(name)}</a>' for name in schemas))
    return f"<nav>{''.join(parts)}</div></nav>"


def _list(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"


def _method(method: str) -> str:
    return f'<span class="method {escape(method)}">{escape(method.upper())}</span>'


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    asked = [_parameter(item) for item in operation["parameters"]]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        asked.append(_row("body", _kind(body), "JSON"))
    answers = {
        status: response
        for status, response in operation["responses"].items()
        if status < "400" or not _refuses(response)
    }
    given = [
        _row(f"<code>{status}</code>", _content(response), _text(response["description"]))
        for status, response in answers.items()
    ]
    refusals = [
        f'<span class="soft">{status}</span>&nbsp;{_codes(response["description"])}'
        for status, response in operation["responses"].items()
        if status not in answers
    ]
    problems = f"<h4>Problems</h4><p>{' · '.join(refusals)}</p>" if refusals else ""
    return (
        f'<section id="{escape(operation["operationId"])}"><h3>{_method(method)} <code>{escape(path)}</code></h3>'
        f"<p>{_text(operation['summary'])}</p>"
        f"{_table('Request', asked)}{_table('Answer', given)}{problems}</section>"
    )


def _parameter(item: dict[str, Any]) -> str:
    said = item.get("description") or _KNOWN.get(item["name"], "")
    where = f'<span class="soft">{escape(item["in"])}</span> '
    default = item["schema"].get("default")
    more = f" Default: <code>{escape(_shown(default))}</code>." if default not in (None, [], {}) else ""
    return _row(f"<code>{escape(item['name'])}</code>", where + _kind(item["schema"]), _text(said) + more)


def _refuses(response: dict[str, Any]) -> bool:
    return any(media.endswith("problem+json") for media in response.get("content", {}))


def _codes(described: str) -> str:
    """The codes of a status, each with a link to what it means."""
    return ", ".join(
        f'<a href="#{code}"><code>{code}</code></a>' if code in BY_CODE else _text(code)
        for code in described.split("; ")
    )


def _content(response: dict[str, Any]) -> str:
    return ", ".join(
        _kind(content["schema"]) if "schema" in content else escape(media)
        for media, content in response.get("content", {}).items()
    )


def _problems() -> str:
    rows = [
        f'<tr id="{escape(code)}"><td><code>{escape(code)}</code></td><td>{error.status}</td>'
        f"<td>{_text((error.__doc__ or '').strip())}{' May be retried.' if error.retryable else ''}</td></tr>"
        for code, error in sorted(BY_CODE.items())
    ]
    return (
        "<p>Every refusal is an <code>application/problem+json</code> (RFC 9457): "
        f'<a href="#schema-Problem">Problem</a>.</p><section><table>{"".join(rows)}</table></section>'
    )


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = []
    for field, kind in schema.get("properties", {}).items():
        default = kind.get("default")
        plain = default in (None, [], {}, "")
        note = "required" if field in required else "" if plain else f"default <code>{escape(_shown(default))}</code>"
        rows.append(_row(f"<code>{escape(field)}</code>", _kind(kind), f'<span class="soft">{note}</span>'))
    if "enum" in schema:
        rows.append(_row(_kind(schema), "", ""))
    return (
        f'<section id="schema-{escape(name)}"><h3>{escape(name)}</h3>'
        f"<p>{_text(schema.get('description', ''))}</p>{_table('', rows)}</section>"
    )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kind(schema: dict[str, Any]) -> str:
    return in_words(schema, named=lambda name: f'<a href="#schema-{escape(name)}">{escape(name)}</a>', code=_code)


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _table(title: str, rows: list[str]) -> str:
    head = f"<h4>{title}</h4>" if title else ""
    return f"{head}<table>{''.join(rows)}</table>" if rows else ""


def _row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _text(text: str) -> str:
    """Text with `` `code` `` in it."""
    parts = escape(text.replace("``", "`")).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
