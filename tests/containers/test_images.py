"""Both images: what they are built with, who their programs run as, and what they write."""

from __future__ import annotations

import re

import pytest

from tests.support.container_engine import ROOT, Engine
from tests.support.server_containers import BASE_IMAGE, SERVER_IMAGE, SPARK_IMAGE, ServerContainer

pytestmark = [pytest.mark.containers, pytest.mark.slow, pytest.mark.timeout(7200)]

PAGE = (ROOT / "deploy" / "README.md").read_text()
PUT_AND_GET = """
import pyarrow as pa
from spark_client import ShuffleClient
with ShuffleClient("grpc://127.0.0.1:{port}", token="{token}") as client:
    client.put("numbers", pa.table({{"n": range(1000)}}), mode="overwrite")
    print(client.get("numbers").read_all()["n"].to_pylist() == list(range(1000)))
"""


def test_no_step_of_a_build_has_warned(build_logs: list[str]) -> None:
    lines = "\n".join(build_logs).splitlines()
    warned = [line for line in lines if re.search(r"(?i)\bwarn(ing)?\b", line)]
    # Of apt, which misses a terminal.
    assert [line for line in warned if "debconf" not in line] == []


def test_the_page_says_how_much_the_images_add_to_the_base(images: Engine) -> None:
    base, *added = (
        int(images.output("image", "inspect", "--format", "{{.Size}}", name)) / 1e6
        for name in (BASE_IMAGE, SERVER_IMAGE, SPARK_IMAGE)
    )
    print(f"\nserver: {added[0] - base:.0f} MB, Spark: {added[1] - base:.0f} MB above {base:.0f} MB")
    said = re.search(r"They are (\d+) MB and ([\d.]+) GB\s+above the base image", PAGE)
    assert said is not None
    assert added[0] - base == pytest.approx(float(said[1]), rel=0.1)
    assert added[1] - base == pytest.approx(float(said[2]) * 1000, rel=0.1)


def test_a_server_in_its_container_serves_as_its_user_and_writes_its_data_alone(
    server: ServerContainer,
) -> None:
    program = PUT_AND_GET.format(port=server.port, token=server.token)
    assert server.inside("python", "-", text=program) == "True\n"
    assert server.inside("id", "--user") == "10001\n"
    assert server.inside("touch", "/var/lib/flight-server/new") == ""
    assert server.inside("touch", "/opt/flight-server/new") is None
    assert server.events("memory_limit_too_high") == []


def test_spark_s_image_has_the_java_of_the_tests(images: Engine) -> None:
    done = images.run("run", "--rm", SPARK_IMAGE, "java", "-version")
    assert ' version "17.' in done.stderr
    assert images.output("run", "--rm", SPARK_IMAGE, "id", "--user") == "185"


def test_spark_s_image_starts_an_executor_of_kubernetes_which_asks_for_its_driver(images: Engine) -> None:
    variables = {
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:9",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_EXECUTOR_MEMORY": "256m",
        "SPARK_APPLICATION_ID": "application",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_EXECUTOR_POD_NAME": "pod",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_JAVA_OPT_0": "-Dspark.driver.port=9",
    }
    options = [f"--env={name}={value}" for name, value in variables.items()]
    ended = images.run("run", "--rm", *options, SPARK_IMAGE, "executor", check=False)
    assert ended.returncode != 0
    assert "Failed to connect to /127.0.0.1:9" in ended.stdout + ended.stderr
