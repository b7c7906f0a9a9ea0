"""`docs/howto/kubernetes.md` against the chart, the metrics, the limits and the tests that hold its rows."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from service.api.waiting import SIGN_OF_LIFE_SECONDS
from service.core.jobs.trouble import REFUSED_LIMIT
from service.messages import MAX_WAIT
from service.observability.metrics import Metrics
from service.tenants import CHECK_EVERY

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "howto" / "kubernetes.md").read_text()
CHART = ROOT / "deploy" / "helm" / "oncebox"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


def yaml_blocks() -> list[dict[str, Any]]:
    return [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)]


def rows() -> list[list[str]]:
    """The cells of the table of failures."""
    lines = PAGE.partition("| what happens |")[2].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_every_row_names_a_test_that_is_there_or_the_page_that_has_it() -> None:
    module = ast.parse((ROOT / "tests" / "integration" / "test_kubernetes.py").read_text())
    there = {each.name for each in module.body if isinstance(each, ast.AsyncFunctionDef)}
    assert len(rows()) > 10
    for happens, _, test in rows():
        assert test.strip("`") in there or (not test and "](replicas.md)" in PAGE), happens


def test_the_codes_and_reasons_of_its_rows_exist() -> None:
    problems = (ROOT / "docs" / "reference" / "problems.md").read_text()
    states = (ROOT / "docs" / "reference" / "states.md").read_text()
    for _, seen, _ in rows():
        for code in re.findall(r"`([A-Z][A-Z_]+)`", seen):
            assert f"`{code}`" in problems
        for word in re.findall(r"`([a-z_]+)`(?!:)", seen):
            assert f"`{word}`" in states, word


def test_the_values_that_it_names_are_the_charts() -> None:
    def known(given: dict[str, Any], values: dict[str, Any], where: str) -> None:
        for name, value in given.items():
            assert name in values, f"{where}{name}"
            if isinstance(value, dict) and values[name]:
                known(value, values[name], f"{where}{name}.")

    known(yaml_blocks()[0], VALUES, "")
    for path in re.findall(r"`((?:[a-zA-Z]+\.)+[a-zA-Z]+)`", PAGE):
        found: Any = VALUES
        if path.split(".")[0] not in VALUES:
            continue  # a file's name
        for name in path.split("."):
            assert name in found, path
            found = found[name]


def test_the_rule_of_the_adapter_is_about_the_metric_that_replicas_are_scaled_by() -> None:
    (rule,) = yaml_blocks()[1]["rules"]
    assert rule["name"]["as"] in rule["seriesQuery"]
    assert rule["name"]["as"] in {family.name for family in Metrics().registry.collect()}
    assert f"metric: {{name: {rule['name']['as']}}}" in (CHART / "templates" / "scaling.yaml").read_text()


def test_its_times_are_those_of_the_code_and_the_chart() -> None:
    assert f"waits for up to {MAX_WAIT} s" in PAGE
    assert f"a sign of life comes every {SIGN_OF_LIFE_SECONDS:g} s" in PAGE
    assert f"within {CHECK_EVERY:g} s of that" in PAGE.replace("\n", " ")
    assert REFUSED_LIMIT == 300
    assert "five minutes of refusals" in PAGE
    assert VALUES["replicas"] == 3
    assert "Three replicas by default" in PAGE
    patience = VALUES["ingress"]["annotations"]["nginx.ingress.kubernetes.io/proxy-read-timeout"]
    assert f"wait for\n{patience} s without a byte" in PAGE
    assert (
        "preStop .Values.shutdown.delay .Values.shutdown.grace 15" in (CHART / "templates" / "_helpers.tpl").read_text()
    )
