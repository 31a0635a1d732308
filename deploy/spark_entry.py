"""The Spark image's entry: becomes what its arguments name. Standard library only.

``executor`` and ``driver`` are what Spark on Kubernetes gives to a container, whose command it leaves to the image; it
says the rest in variables. ``master`` and ``worker MASTER`` are the daemons of a standalone cluster, in the
foreground. All else is a command, such as ``spark-submit``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_JAVA_OPTION = "SPARK_JAVA_OPT_"


def command(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The program and its arguments. Raises KeyError if Spark has not set a variable that it needs."""
    home = Path(environment["SPARK_HOME"])
    match list(arguments):
        case ["executor", *_]:
            return _executor(environment, home)
        case ["driver", *rest]:
            bind = f"spark.driver.bindAddress={environment['SPARK_DRIVER_BIND_ADDRESS']}"
            return [str(home / "bin/spark-submit"), "--conf", bind, "--deploy-mode", "client", *rest]
        case ["master" | "worker" as role, *rest]:
            main = f"org.apache.spark.deploy.{role}.{role.capitalize()}"
            return [str(home / "bin/spark-class"), main, *rest]
        case []:
            return [str(home / "bin/spark-submit"), "--help"]
        case rest:
            return rest


def _executor(environment: Mapping[str, str], home: Path) -> list[str]:
    numbered = sorted(
        (int(name.removeprefix(_JAVA_OPTION)), option)
        for name, option in environment.items()
        if name.startswith(_JAVA_OPTION)
    )
    given = (
        environment.get(name) for name in ("HADOOP_CONF_DIR", "SPARK_CLASSPATH", "SPARK_EXTRA_CLASSPATH")
    )
    conf = environment.get("SPARK_CONF_DIR", str(home / "conf"))
    classes = [conf, *(path for path in given if path), str(home / "jars/*")]
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    return [
        str(Path(environment["JAVA_HOME"]) / "bin/java"),
        *(option for _, option in numbered),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        ":".join(classes),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", environment["SPARK_DRIVER_URL"]),
        *("--executor-id", environment["SPARK_EXECUTOR_ID"]),
        *("--cores", environment["SPARK_EXECUTOR_CORES"]),
        *("--app-id", environment["SPARK_APPLICATION_ID"]),
        *("--hostname", environment["SPARK_EXECUTOR_POD_IP"]),
        *("--resourceProfileId", environment["SPARK_RESOURCE_PROFILE_ID"]),
        *("--podName", environment["SPARK_EXECUTOR_POD_NAME"]),
    ]


if __name__ == "__main__":
    program = command(sys.argv[1:], os.environ)
    os.execvp(program[0], program)  # noqa: S606  # Docker signals this process: it must not be a shell
