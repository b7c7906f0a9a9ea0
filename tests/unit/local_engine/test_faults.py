"""Faults on order, and how lists are made."""

from typing import Any

import pytest

from service.local_engine.dev_controls import parse_faults
from service.local_engine.replies import Refused
from service.local_engine.server import execd_kind
from service.local_engine.stats import Fault, Faults


def test_one_order_may_name_several_kinds() -> None:
    found = parse_faults({"create_delay": 1.5, "create_reply": "drop", "submit_reply": "cut_after_init", "count": 2})
    assert found == {
        "create": Fault(count=2, delay=1.5, reply="drop"),
        "submit": Fault(count=2, reply="cut_after_init"),
    }
    assert parse_faults({"file_status": 502, "file_content_type": "text/html", "file_body": "x"})["file"] == Fault(
        status=502, content_type="text/html", body="x"
    )


@pytest.mark.parametrize(
    "order",
    [
        {"create": 1}, {"craete_delay": 1}, {"create_delay": "1"}, {"create_reply": "cut_after_init"},
        {"create_status": "500"}, {"count": 0, "create_delay": 1}, {"create_nonsense": 1},
    ],
)  # fmt: skip
def test_an_order_that_means_nothing_is_refused(order: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        parse_faults(order)


def test_faults_are_due_in_order_and_run_out() -> None:
    faults = Faults()
    faults.add("create", Fault(count=2, delay=1))
    faults.add("create", Fault(reply="drop"))
    taken = [faults.take("create") for _ in range(4)]
    assert [fault and (fault.delay, fault.reply) for fault in taken] == [(1, ""), (1, ""), (0.0, "drop"), None]
    assert faults.take("submit") is None


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("GET", "/command/status/x", "status"), ("GET", "/command/x/logs", "log"), ("POST", "/command", "submit"),
        ("DELETE", "/command", "interrupt"), ("GET", "/files/download", "file"), ("GET", "/ping", "ping"),
        ("GET", "/files/info", "other"), ("PUT", "/command", "other"),
    ],
)  # fmt: skip
def test_requests_are_counted_by_kind(method: str, path: str, kind: str) -> None:
    assert execd_kind(method, path) == kind
