"""The Helm chart in `deploy/helm/oncebox`, held against the settings and limits that the code really has.

What a default install makes lies beside it, as helm renders it; `make chart` holds the two together, and asks helm and
Kubernetes' own schemas. `ONCEBOX_TEST_HELM` names helm.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

import service
from service import settings
from service.api.waiting import SIGN_OF_LIFE_SECONDS
from service.messages import MAX_WAIT
from service.observability.metrics import Metrics
from service.server.replica import CLOSING_SECONDS, LAST_SECONDS
from tests.support.missing import missing

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "oncebox"
GOLDEN = ROOT / "deploy" / "helm" / "default-install.yaml"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
KUBERNETES = "1.34.0"
"""What is rendered for, and whose schemas are asked."""

EVERYTHING: dict[str, Any] = {
    "autoscaling": {"enabled": True},
    "engine": {"networks": ["10.0.0.0/8", "fd00::/8"], "workspaceClaim": "work"},
    "image": {"pullSecrets": [{"name": "registry"}]},
    "ingress": {"enabled": True, "tlsSecret": "certificate"},
    "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {
        "callers": [{"podSelector": {"matchLabels": {"app": "caller"}}}],
        "engine": {"serverNamespace": "opensandbox-system", "sandboxNamespace": "opensandbox"},
    },
    "nodeSelector": {"pool": "services"},
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
    "priorityClassName": "high",
    "redis": {"urlSecret": "redis"},
    "route": {
        "enabled": True,
        "parents": [{"name": "public", "namespace": "gateways"}],
        "hosts": ["oncebox.example.com"],
    },
    "settings": {"ONCEBOX_RETENTION": "3600", "ONCEBOX_LEASE": 20},
    "tolerations": [{"key": "k", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
}
"""Values that switch on all that can be."""


def objects(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The objects of rendered manifests, by kind and name."""
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text) if each}


DEFAULT = objects(GOLDEN.read_text())


def pod(of: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = of["Deployment", "oncebox"]["spec"]["template"]["spec"]
    return found


def container(of: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    (found,) = pod(of)["containers"]
    return dict(found)


def environment(of: dict[tuple[str, str], dict[str, Any]]) -> dict[str, str]:
    """The variables of a replica; those of a Secret as some text."""
    secret = {"ONCEBOX_REDIS_URL": "redis://user:password@elsewhere:6379/0"}
    return {each["name"]: each.get("value") or secret.get(each["name"], "s3cret") for each in container(of)["env"]}


def check_replica(of: dict[tuple[str, str], dict[str, Any]]) -> settings.Settings:
    """The settings of the replicas, which can serve with them."""
    variables = environment(of)
    assert len(variables) == len(container(of)["env"]), "a variable stands there twice"
    for name in variables:
        assert name.lower().removeprefix("oncebox_") in settings.Settings.__struct_fields__, name
    read = settings.load(variables)
    read.check_serving(1)
    assert not read.standalone
    return read


# -- without helm: what a default install makes


def test_a_replicas_settings_exist_and_are_understood() -> None:
    read = check_replica(DEFAULT)
    assert read.engine_runtime == "kubernetes"
    assert read.redis_url == "redis://oncebox-redis:6379/0"
    assert read.address == ("0.0.0.0", container(DEFAULT)["ports"][0]["containerPort"])


def test_a_replica_gets_the_time_that_it_may_take_to_end() -> None:
    read = check_replica(DEFAULT)
    stop = float(container(DEFAULT)["lifecycle"]["preStop"]["exec"]["command"][1])
    needed = stop + read.shutdown_delay + read.shutdown_grace + CLOSING_SECONDS + LAST_SECONDS
    assert pod(DEFAULT)["terminationGracePeriodSeconds"] >= needed


def test_secrets_are_named_and_never_written() -> None:
    named = {each["name"] for each in container(DEFAULT)["env"] if "valueFrom" in each}
    assert named == {"ONCEBOX_ENGINE_API_KEY", "ONCEBOX_SECRET", "ONCEBOX_METRICS_TOKEN"}
    assert not [kind for kind, _ in DEFAULT if kind == "Secret"]


def test_the_tenants_file_is_in_a_mounted_directory_that_changes_with_its_secret() -> None:
    (mount,) = [each for each in container(DEFAULT)["volumeMounts"] if each["name"] == "tenants"]
    assert "subPath" not in mount, "what is mounted by itself never changes"
    (volume,) = [each for each in pod(DEFAULT)["volumes"] if each["name"] == "tenants"]
    assert volume["secret"] == {"secretName": VALUES["tenants"]["secret"]}
    assert check_replica(DEFAULT).tenants == f"{mount['mountPath']}/{VALUES['tenants']['key']}"


@pytest.mark.parametrize(("kind", "name"), [("Deployment", "oncebox"), ("StatefulSet", "oncebox-redis")])
def test_a_pod_gains_nothing_and_writes_nowhere_but_to_its_volumes(kind: str, name: str) -> None:
    spec = DEFAULT[kind, name]["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (only,) = spec["containers"]
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_replica_runs_as_whatever_user_it_is_given() -> None:
    assert "runAsUser" not in pod(DEFAULT)["securityContext"]
    assert "runAsUser" not in container(DEFAULT)["securityContext"]
    last = (ROOT / "deploy" / "Dockerfile").read_text().rpartition("FROM ")[2]
    assert re.search(r"^USER [1-9]\d*:", last, re.MULTILINE), (
        "without one by its number the kubelet refuses to start it"
    )


def test_probes_ask_what_they_are_for() -> None:
    replica = container(DEFAULT)
    assert replica["livenessProbe"]["httpGet"]["path"] == replica["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert replica["readinessProbe"]["httpGet"]["path"] == "/readyz"
    read = check_replica(DEFAULT)
    noticed = replica["readinessProbe"]["periodSeconds"] * replica["readinessProbe"]["failureThreshold"]
    assert noticed <= replica_stays(read), "it would go before anybody noticed that it is not ready"


def replica_stays(read: settings.Settings) -> float:
    """Seconds for which a replica that is told to go still serves."""
    return read.shutdown_delay + float(container(DEFAULT)["lifecycle"]["preStop"]["exec"]["command"][1])


def test_a_rollout_and_a_drain_take_one_at_a_time_away() -> None:
    rolling = DEFAULT["Deployment", "oncebox"]["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 1, "maxUnavailable": 0}
    assert DEFAULT["PodDisruptionBudget", "oncebox"]["spec"]["maxUnavailable"] == 1
    keys = {each["topologyKey"] for each in pod(DEFAULT)["topologySpreadConstraints"]}
    assert keys == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}


def test_the_small_redis_keeps_what_it_has_acknowledged_and_evicts_nothing() -> None:
    (only,) = DEFAULT["StatefulSet", "oncebox-redis"]["spec"]["template"]["spec"]["containers"]
    options = dict(zip(only["args"][1::2], only["args"][2::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--maxmemory-policy"] == "noeviction"
    assert only["volumeMounts"] == [{"name": "data", "mountPath": options["--dir"]}]
    (peer,) = DEFAULT["NetworkPolicy", "oncebox-redis"]["spec"]["ingress"][0]["from"]
    assert peer["podSelector"]["matchLabels"] == DEFAULT["Deployment", "oncebox"]["spec"]["selector"]["matchLabels"]


def test_the_chart_is_of_this_release_and_names_no_host_of_a_registry() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == service.__version__
    images = [VALUES["image"]["repository"], VALUES["engine"]["image"], VALUES["redis"]["trial"]["image"]]
    assert [each for each in images if "." in each.partition("/")[0].partition(":")[0]] == []


def test_values_and_schema_know_the_same_names() -> None:
    def compare(values: dict[str, Any], schema: dict[str, Any], where: str) -> None:
        assert schema["additionalProperties"] is False, where
        names = set(schema["properties"]) - {"global"}
        assert set(values) == names, where
        for name in names:
            if "properties" in schema["properties"][name] and name not in ("requests", "limits"):
                compare(values[name], schema["properties"][name], f"{where}.{name}")

    compare(VALUES, SCHEMA, "")


def test_the_way_in_waits_longer_than_the_service_is_silent() -> None:
    annotations = VALUES["ingress"]["annotations"]
    for name in ("proxy-read-timeout", "proxy-send-timeout"):
        assert int(annotations[f"nginx.ingress.kubernetes.io/{name}"]) > max(SIGN_OF_LIFE_SECONDS, MAX_WAIT)
    assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert annotations["nginx.ingress.kubernetes.io/proxy-next-upstream"] == "error"


def test_what_replicas_are_scaled_by_is_measured() -> None:
    template = (CHART / "templates" / "scaling.yaml").read_text()
    found = re.search(r"metric: \{name: (\w+)\}", template)
    assert found
    assert found[1] in {family.name for family in Metrics().registry.collect()}


def test_alerts_and_dashboard_are_the_ones_of_every_other_deployment() -> None:
    for name, shared in (
        ("alerts.yml", "deploy/prometheus/alerts.yml"),
        ("dashboard.json", "deploy/grafana/dashboards/oncebox.json"),
    ):
        assert (CHART / "files" / name).is_symlink()
        assert (CHART / "files" / name).resolve() == (ROOT / shared).resolve()


def test_a_default_install_is_what_kubernetes_takes() -> None:
    for each in DEFAULT.values():
        taken_by_kubernetes(each)


def taken_by_kubernetes(each: dict[str, Any]) -> None:
    """By the schemas of Kubernetes' own kinds."""
    try:
        schemas = importlib.import_module("kubernetes_validate")
    except ImportError:
        missing("no kubernetes-validate here: `pip install -e '.[dev]'`")
    schemas.validate(each, KUBERNETES, strict=True)


# -- with helm (`make chart`)


@cache
def helm() -> str:
    program = shutil.which(os.environ.get("ONCEBOX_TEST_HELM", ""))
    if program is None:
        missing("no helm here: `make chart` builds one where there is Go")
    return program


def run_helm(*words: str, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    command = [helm(), *words, "--kube-version", KUBERNETES, "--values", "-"]
    return subprocess.run(
        command, input=json.dumps(values or {}), capture_output=True, text=True, timeout=60, check=False
    )


def rendered(values: dict[str, Any] | None = None) -> str:
    made = run_helm("template", "oncebox", str(CHART), "--namespace", "oncebox", values=values)
    assert made.returncode == 0, made.stderr
    return made.stdout


@pytest.mark.chart
def test_a_default_install_makes_what_is_written_down() -> None:
    made = rendered()
    if os.environ.get("ONCEBOX_TEST_GOLDEN") == "update":
        GOLDEN.write_text(made)
    assert made == GOLDEN.read_text(), (
        "deploy/helm/default-install.yaml is not what the chart makes; "
        "where that is meant: ONCEBOX_TEST_GOLDEN=update make chart"
    )


@pytest.mark.chart
@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["default", "everything"])
def test_helm_finds_nothing_wrong(values: dict[str, Any]) -> None:
    linted = run_helm("lint", str(CHART), "--strict", values=values)
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.chart
def test_everything_that_can_be_switched_on_is_what_kubernetes_takes_and_has_its_rows() -> None:
    found = objects(rendered(EVERYTHING))
    for each in found.values():
        if each["apiVersion"].startswith(("gateway.networking.k8s.io/", "monitoring.coreos.com/")):
            continue  # kinds that Kubernetes does not bring: no schema of theirs is at hand
        taken_by_kubernetes(each)
    read = check_replica(found)
    assert read.volume == "pvc:work"
    assert [str(each) for each in read.engine_networks] == EVERYTHING["engine"]["networks"]
    assert read.lease == 20
    assert read.redis_url.endswith("@elsewhere:6379/0")
    assert "replicas" not in found["Deployment", "oncebox"]["spec"], "the autoscaler's count would be undone"
    assert ("StatefulSet", "oncebox-redis") not in found


@pytest.mark.chart
def test_the_values_that_the_documentation_shows_are_taken() -> None:
    page = (ROOT / "docs" / "howto" / "kubernetes.md").read_text()
    shown = re.search(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert shown
    found = objects(rendered(yaml.safe_load(shown[1])))
    assert check_replica(found).volume == "pvc:workspaces"
    assert ("NetworkPolicy", "oncebox-sandboxes") in found


@pytest.mark.chart
def test_only_replicas_reach_the_engine_and_the_sandboxes() -> None:
    found = objects(rendered(EVERYTHING))
    replicas = found["Deployment", "oncebox"]["spec"]["selector"]["matchLabels"]
    engine, sandboxes = found["NetworkPolicy", "oncebox-engine"], found["NetworkPolicy", "oncebox-sandboxes"]
    assert engine["metadata"]["namespace"] == "opensandbox-system"
    assert sandboxes["metadata"]["namespace"] == "opensandbox"
    peers = sandboxes["spec"]["ingress"][0]["from"]
    assert [each["podSelector"]["matchLabels"] for each in engine["spec"]["ingress"][0]["from"]] == [replicas]
    assert [each["podSelector"]["matchLabels"] for each in peers] == [
        replicas,
        engine["spec"]["podSelector"]["matchLabels"],
    ]
    assert all("namespaceSelector" in each for each in peers), "labels alone would let a sandbox's own namespace in"


@pytest.mark.chart
def test_monitoring_has_the_alerts_the_dashboard_and_the_token() -> None:
    found = objects(rendered(EVERYTHING))
    alerts = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
    assert found["PrometheusRule", "oncebox"]["spec"] == alerts
    dashboard = json.loads((ROOT / "deploy/grafana/dashboards/oncebox.json").read_text())
    assert json.loads(found["ConfigMap", "oncebox-dashboard"]["data"]["oncebox.json"]) == dashboard
    monitor = found["ServiceMonitor", "oncebox"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "oncebox", "key": "metrics-token"}
    labels = found["Service", "oncebox"]["metadata"]["labels"]
    assert labels[monitor["spec"]["jobLabel"]] == "oncebox", "alerts and dashboard know the replicas as this job"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.chart
@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"replica": 3}, "replica"),
        ({"replicas": 0}, "replicas"),
        ({"settings": {"ONCEBOX_SECRET": "x"}}, "ONCEBOX_SECRET"),
        ({"settings": {"LEASE": "x"}}, "LEASE"),
        ({"redis": {"url": "redis://:password@host"}}, "url"),
        ({"engine": {"url": "opensandbox"}}, "url"),
        ({"redis": {"trial": {"enabled": False}}}, "redis.url or redis.urlSecret is needed"),
        ({"route": {"enabled": True}}, "route.parents names no Gateway"),
        ({"monitoring": {"enabled": True}, "secrets": {"keys": {"metricsToken": ""}}}, "without a token"),
    ],
)
def test_values_that_can_not_be_meant_are_refused_by_name(values: dict[str, Any], complaint: str) -> None:
    made = run_helm("template", "oncebox", str(CHART), values=values)
    assert made.returncode != 0
    assert complaint in made.stderr


def test_without_helm_the_charts_tests_fail_in_ci_and_are_skipped_elsewhere() -> None:
    one = "tests/contract/test_chart.py::test_a_default_install_makes_what_is_written_down"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "chart", one]
    for ci, found in (("true", "1 failed"), ("", "1 skipped")):
        environment = {**os.environ, "ONCEBOX_TEST_HELM": "", "CI": ci}
        ran = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert found in ran.stdout.splitlines()[-1], ran.stdout
