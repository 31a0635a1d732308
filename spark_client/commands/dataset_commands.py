"""``ls``, ``stat``, ``drop``, ``why``: the datasets of a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from flight_server.protocol import FlightShuffleError
from spark_client import DatasetInfo
from spark_client.connection import NoAnswer

from .connected import Link, connected
from .printing import duration, print_json, print_line, print_table, size, without_calls


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("ls")(connected(_list))
    app.command("stat")(connected(_stat))
    app.command("drop")(connected(_drop))
    app.command("why")(connected(_why))


def _list(
    link: Link,
    prefix: Annotated[str, typer.Argument(help="only names that begin so", show_default=False)] = "",
) -> None:
    """List datasets."""
    if "://" in prefix:
        raise typer.BadParameter(f"no dataset's name begins with {prefix!r}; a server is named by -s")
    with link.client() as client:
        infos = client.datasets(prefix)
    if link.as_json:
        for each in infos:
            print_json(_listed(each))
    else:
        print_table(
            ("name", ">partitions", ">rows", ">size"),
            [
                (each.name, each.partitions, _known(each.rows), size(_known(each.size_bytes)))
                for each in infos
            ],
        )
    _check_all_answered(infos.gone)


def _check_all_answered(gone: list[dict[str, Any]]) -> None:
    """Raises FlightShuffleError: a server did not answer."""
    if gone:
        raise FlightShuffleError(
            "; ".join(f"{each['location']} is gone, and is left out: {each['gone']}" for each in gone)
        )


def _listed(info: DatasetInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "partitions": info.partitions,
        "rows": _known(info.rows),
        "size_bytes": _known(info.size_bytes),
        "schema": [{"name": each.name, "type": str(each.type)} for each in info.schema],
    }


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _stat(link: Link, name: Annotated[str, typer.Argument(help="the dataset")]) -> None:
    """Show a dataset: kind, state, rows, bytes in memory and in all, readers, schema, partitions, servers; and which
    servers have the rest of it, if not all were asked or have answered.
    """
    with link.client() as client:
        answer = client.statistics(name)
        (schema,) = [each.schema for each in client.datasets(name) if each.name == name] or [()]
    facts = answer["datasets"][name]
    # A principal that does not see all of a server is not told which they are.
    fallback = [] if "," in link.location else [link.location]
    servers = [each["location"] for each in answer.get("servers") or ()] or fallback
    columns = [{"name": each.name, "type": str(each.type)} for each in schema]
    if link.as_json:
        print_json({"name": name, **facts, "schema": columns, "servers": servers})
        return
    lease = facts["lease_left_seconds"]
    lines = {
        "kind": facts["kind"] + (", durable" if facts["durable"] else ""),
        "state": "sealed" if facts["sealed"] else "open",
        "generation": facts["generation"],
        "rows": f"{facts['rows']:,} in {facts['frames']:,} frames",
        "size": f"{size(facts['bytes'])}, {size(facts['resident_bytes'])} of it in memory",
        "partitions": f"{facts['partition_count']:,} ("
        + ", ".join(f"{number:,} {state}" for state, number in facts["partition_states"].items())
        + ")",
        "readers": f"{facts['readers']:,}",
        "lease": "until it is dropped" if lease is None else f"{duration(lease)} left",
        "servers": " ".join(servers) or "-",
        **({"a part": _rest(facts)} if facts["whole"] else {}),
        "columns": ", ".join(f"{each['name']} {each['type']}" for each in columns),
    }
    for label, text in lines.items():
        print_line(f"{label:<11} {text}")


def _rest(facts: Mapping[str, Any]) -> str:
    """The parts of a dataset that these facts are not about, in words."""
    parts = [each for each in facts["portions"] if each["start"] not in facts["starts"]]
    shown = ", ".join(f"{each['rows']:,} at {each['locations'][0]}" for each in parts)
    return f"of {facts['whole']['rows']:,} rows; not counted: {shown}"


def _drop(link: Link, names: Annotated[list[str], typer.Argument(help="the datasets")]) -> None:
    """Drop datasets; their readers get an error. Goes on after a name that there is not."""
    refused = []
    with link.client() as client:
        for name in names:
            try:
                client.drop(name)
            except NoAnswer:
                raise
            except FlightShuffleError as error:
                refused.append(error)
            if link.as_json:
                error_text = (
                    without_calls(refused[-1])
                    if refused and refused[-1].detail.get("dataset") == name
                    else None
                )
                print_json({"name": name, "dropped": error_text is None, "error": error_text})
    if refused:
        raise FlightShuffleError("; ".join(map(without_calls, refused)))


def _why(
    link: Link, name: Annotated[str | None, typer.Argument(help="only streams of this dataset")] = None
) -> None:
    """Show each stream that waits: for what, how long, and its peer; the longest first."""
    with link.client() as client:
        listed = client.why(name)
    waits = sorted(listed, key=lambda each: -each["seconds"])
    if link.as_json:
        for each in waits:
            print_json(each)
    elif waits:
        names = ("dataset", "partition", "producer", "peer")
        print_table(
            ("waiting for", ">for", *names),
            [
                (each["waiting_for"], duration(each["seconds"]), *(each[name] for name in names))
                for each in waits
            ],
        )
    else:
        print_line("no stream waits")
    _check_all_answered(listed.gone)
