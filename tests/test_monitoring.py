"""The dashboard and the alerts ask for metrics, labels and values that a server has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.bulk import get
from tests.support.server_process import ROOT, ServerProcess

DEPLOY = ROOT / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboards" / "flight-server.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"][
    0
]["rules"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
QUERIES = [target["expr"] for _, target in TARGETS] + [rule["expr"] for rule in RULES]
_METRIC = re.compile(r"\b((?:flight_shuffle|process)_[a-z_]+)(?:{([^}]*)})?")
_MATCHER = re.compile(r'(\w+)(=~|!=|=)"([^"]*)"')
_GROUPED = re.compile(r"\b(?:by|on|without) \(([^)]*)\)")
# Prometheus adds these to each metric of a target.
OF_TARGETS = {"job", "instance"}


@pytest.fixture(scope="module")
def text() -> Iterator[str]:
    with ServerProcess.start(memory_limit="64MiB") as server:
        yield get(f"{server.http}/metrics").body.decode()


@pytest.fixture(scope="module")
def values(text: str) -> dict[str, dict[str, set[str]]]:
    """The values of each label of each metric."""
    found: dict[str, dict[str, set[str]]] = {
        name: {} for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    }
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    found["flight_shuffle_task_failures_total"] = {"task": set()}  # none has failed
    return found


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_what_a_server_has(values: dict[str, dict[str, set[str]]], query: str) -> None:
    asked = _METRIC.findall(query)
    assert asked or query.startswith("up{")
    labels: set[str] = set(OF_TARGETS)
    for metric, matchers in asked:
        assert metric in values
        labels |= values[metric].keys()
        for label, operator, value in _MATCHER.findall(matchers):
            assert label in values[metric].keys() | OF_TARGETS
            if label not in OF_TARGETS and operator != "!=":
                assert set(value.split("|")) <= values[metric][label]
    grouped = {label.strip() for group in _GROUPED.findall(query) for label in group.split(",")}
    assert grouped <= labels
    for name in asked:
        if name[0].endswith("_total"):
            assert re.search(rf"(rate|increase)\({name[0]}\b", query), "a counter is shown as a rate"


def test_each_metric_is_in_a_panel_or_has_a_reason_not_to_be(values: dict[str, dict[str, set[str]]]) -> None:
    shown = {name for _, target in TARGETS for name, _ in _METRIC.findall(target["expr"])}
    shown |= {re.sub(r"_bucket$", suffix, name) for name in shown for suffix in ("", "_count", "_sum")}
    left_out = {
        "flight_shuffle_build_info",  # versions, for queries by hand
        "flight_shuffle_joins_total",  # how batches were joined, for queries by hand
        "flight_shuffle_certificate_expiry_seconds",  # alerts say these two
        "flight_shuffle_reload_trouble",
        "flight_shuffle_changelog_ranges",
        "flight_shuffle_changelog_runs",
        "flight_shuffle_changelog_tombstones",
        "flight_shuffle_changelog_transaction_ids",
        "flight_shuffle_changelog_waiting_retractions",
        "process_start_time_seconds",
        "process_virtual_memory_bytes",
    }
    assert values.keys() - shown == left_out


@pytest.mark.parametrize(("title", "target"), TARGETS)
def test_a_legend_names_labels_that_the_query_keeps(title: str, target: dict[str, Any]) -> None:
    kept = {label.strip() for group in _GROUPED.findall(target["expr"]) for label in group.split(",")}
    aggregated = "sum" in target["expr"] or "max" in target["expr"].replace("max_", "")
    for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
        assert label in (kept if aggregated else OF_TARGETS), title


def test_the_dashboard_keeps_the_rules_of_grafana_s_linter() -> None:
    assert DASHBOARD["editable"] is False
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert variables.keys() == {"datasource", *OF_TARGETS}
    for name in OF_TARGETS:
        assert (variables[name]["refresh"], variables[name]["multi"], variables[name]["allValue"]) == (
            2,
            True,
            ".+",
        )
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"]["uid"] == "$datasource"
        assert panel["fieldConfig"]["defaults"]["unit"] in _UNITS
    for _, target in TARGETS:
        selectors = [matchers for _, matchers in _METRIC.findall(target["expr"])]
        assert all('job=~"$job", instance=~"$instance"' in matchers for matchers in selectors)
        assert all(window == "$__rate_interval" for window in re.findall(r"\[([^\]]+)\]", target["expr"]))
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)


_UNITS = {"short", "bytes", "Bps", "ops", "s", "percentunit"}


def test_grafana_finds_the_dashboard_and_prometheus_the_rules() -> None:
    provisioned = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioned / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    (provider,) = yaml.safe_load((provisioned / "dashboards" / "flight-server.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
    assert [path.name for path in (DEPLOY / "prometheus").iterdir()] == ["alerts.yaml"], "it loads them all"


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_says_what_happened_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["action"].endswith(".")


def test_each_alert_has_a_unit_test() -> None:
    tested = (ROOT / "tests" / "alerts_test.yaml").read_text()
    assert [rule["alert"] for rule in RULES if rule["alert"] not in tested] == []


PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_takes_metrics_rules_and_their_tests(text: str) -> None:
    assert PROMTOOL is not None
    for arguments, given in (
        (["check", "metrics"], text),
        (["check", "rules", str(DEPLOY / "prometheus" / "alerts.yaml")], ""),
        (["test", "rules", str(Path(__file__).parent / "alerts_test.yaml")], ""),
    ):
        done = subprocess.run(
            [PROMTOOL, *arguments], input=given, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
