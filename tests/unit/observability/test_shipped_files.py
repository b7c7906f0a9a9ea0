"""Alerts, dashboard and documentation speak of metrics that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from service.observability.metrics import Metrics
from tests.unit.observability.promql import SCRAPED, grouped, named

ROOT = Path(__file__).resolve().parents[3]
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
PROMETHEUS = ROOT / "deploy/prometheus/prometheus.yml"
DASHBOARD = ROOT / "deploy/grafana/dashboards/oncebox.json"
DOCUMENT = ROOT / "docs/observability.md"


def known() -> dict[str, set[str]]:
    """Labels by name of series."""
    found: dict[str, set[str]] = {}
    for collector, names in Metrics().registry._collector_to_names.items():
        labels = set(getattr(collector, "_labelnames", ()))
        for name in names:
            found[name] = labels | ({"le"} if name.endswith("_bucket") else set())
    return found


def values() -> dict[str, dict[str, set[str]]]:
    """Values by series and label, of those that are there from the start."""
    found: dict[str, dict[str, set[str]]] = {}
    for family in Metrics().registry.collect():
        for sample in family.samples:
            for label, value in sample.labels.items():
                found.setdefault(sample.name, {}).setdefault(label, set()).add(value)
    return found


KNOWN = known()
VALUES = values()


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def expressions() -> list[tuple[str, str]]:
    found = [(rule["alert"], rule["expr"]) for rule in rules()]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        found += [(panel["title"], target["expr"]) for target in panel.get("targets", ())]
    return found


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_every_metric_label_and_value_that_is_asked_for_exists(where: str, expression: str) -> None:
    found = list(named(expression))
    labels = SCRAPED | {"le"}
    for metric in found:
        assert metric.name in KNOWN, f"{where}: there is no {metric.name}"
        labels |= KNOWN[metric.name]
        assert set(metric.asked) <= KNOWN[metric.name] | SCRAPED, f"{where}: {metric}"
        for label, asked in metric.asked.items():
            there = VALUES.get(metric.name, {}).get(label)
            if there and label != "wait" and label not in SCRAPED:
                assert set(asked) <= there, f"{where}: {metric}"
    assert grouped(expression) <= labels, where


def test_every_alert_says_how_bad_it_is_and_has_its_page() -> None:
    text = DOCUMENT.read_text()
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert f"### {rule['alert']}\n" in text, rule["alert"]
        assert rule["annotations"]["runbook"] == f"docs/observability.md#{rule['alert'].lower()}"
    headings = set(re.findall(r"^### (Oncebox\w+)$", text, re.MULTILINE))
    assert headings == {rule["alert"] for rule in rules()}


def test_every_metric_is_documented_and_no_other() -> None:
    documented = set(re.findall(r"^\| `(oncebox_[a-z0-9_]+)`", DOCUMENT.read_text(), re.MULTILINE))
    families = {family.name + ("_total" if family.type == "counter" else "") for family in Metrics().registry.collect()}
    assert documented == families


def test_panels_have_their_place_and_lie_on_no_other() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_prometheus_scrapes_each_replica_with_the_token() -> None:
    job = yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"][0]
    assert job["job_name"] == "oncebox"
    assert job["static_configs"][0]["targets"] == [f"oncebox-{number}:8700" for number in (1, 2, 3)]
    assert job["authorization"]["credentials_file"]


def test_promtool_takes_the_files(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool")
    subprocess.run([promtool, "check", "rules", str(ALERTS)], check=True)
    subprocess.run([promtool, "check", "config", "--syntax-only", str(PROMETHEUS)], check=True)
