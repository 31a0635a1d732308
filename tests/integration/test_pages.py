"""The pages: each link leads somewhere, each block of Python runs as it stands, each error is one of the code's."""

from __future__ import annotations

import ast
import codeop
import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flight_server.config import Settings
from flight_server.protocol import ACTIONS
from spark_client import cli
from spark_client.reducing import FUNCTIONS, SYNONYMS
from tests.support.pages import ROOT, anchors, blocks, links, pages, printed, python_blocks
from tests.support.python_program import output_of
from tests.support.rooms import MODULES, ROOMS, parsed
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

README = ROOT / "README.md"
ERRORS = ROOT / "spark_client" / "errors.md"
MAX_README_WORDS = 1_200
SCHEMES = ("https://", "http://")
TUTORIAL = [name for name in blocks() if name.startswith("tutorial_")]
"""The blocks of the tutorial, in their order."""


def at(code: str, server: ServerProcess) -> str:
    """The block for a server whose ports were free, instead of the default ones."""
    assert server.http is not None
    return code.replace("grpc://127.0.0.1:8815", server.location).replace(
        "http://127.0.0.1:8816", server.http
    )


def test_the_readme_can_be_read_in_a_few_minutes() -> None:
    assert len(README.read_text().split()) <= MAX_README_WORDS


def test_each_link_of_a_page_leads_to_a_file_and_a_place_in_it() -> None:
    wrong = []
    for page in pages():
        for link in links(page):
            if link.startswith(SCHEMES):
                continue
            path, _, place = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (place and place not in anchors(target)):
                wrong.append(f"{page.relative_to(ROOT)}: {link}")
    assert not wrong, "\n".join(wrong)


def test_each_page_is_reached_from_the_readme() -> None:
    reached, following = {README}, [README]
    while following:
        page = following.pop()
        for link in links(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target in pages() and target not in reached:
                reached.add(target)
                following.append(target)
    assert set(pages()) == reached


def test_each_file_that_a_page_names_is_there() -> None:
    named = re.compile(r"`((?:flight_server|spark_client|tests|deploy)/[\w./-]+)`")
    wrong = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages()
        for name in named.findall(page.read_text())
        if not (ROOT / name).exists()
    ]
    assert not wrong, "\n".join(wrong)


def test_every_block_of_python_has_a_name_by_which_a_test_runs_it() -> None:
    here = re.findall(r'found\["(\w+)"\]', Path(__file__).read_text())
    tests = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    assert set(blocks()) == {*here, *re.findall(r'blocks\(\)\["(\w+)"\]', tests), *TUTORIAL}
    for page in pages():
        for block in python_blocks(page):
            assert block in blocks().values(), f"{page.relative_to(ROOT)}: {block[:60]!r} is not run"


@pytest.mark.parametrize("name", blocks())
def test_each_block_of_python_can_be_pasted_into_pythons_shell(name: str) -> None:
    """Which takes the lines one by one, and ends a function or loop at an empty line."""
    compiled, statement = codeop.CommandCompiler(), ""
    for line in f"{blocks()[name]}\n".splitlines(keepends=True):
        statement += line
        if compiled(statement.removesuffix("\n"), name, "single") is not None:
            statement = ""
    assert statement == ""


def test_the_operators_page_has_each_flag_of_the_server() -> None:
    page = (ROOT / "deploy" / "README.md").read_text()
    flags = {f"--{name.replace('_', '-')}" for name in Settings.model_fields}
    assert not {flag for flag in flags if f"`{flag}`" not in page}


def test_the_page_of_the_server_has_each_action() -> None:
    page = (ROOT / "flight_server" / "README.md").read_text()
    assert not {action for action in ACTIONS if f"`{action}`" not in page}


def test_the_page_of_pipelines_has_each_aggregate() -> None:
    page = (ROOT / "spark_client" / "pipeline" / "README.md").read_text()
    assert not {name for name in (*FUNCTIONS, *SYNONYMS) if f"`{name}`" not in page}


def test_the_listing_of_the_rooms_has_each_room() -> None:
    listing = (ROOT / "CONTRIBUTING.md").read_text().split("<!-- rooms -->")[1].split("```")[1]
    missing = [
        room
        for package, known in ROOMS.items()
        for room in known
        if f"{room.replace('.', '/')}/" not in listing.partition(f"{package}/")[2]
    ]
    assert not missing


@cache
def texts_of_the_code() -> tuple[str, ...]:
    """Each text in the two packages, with an ellipsis for a value that is put into it; no docstrings."""
    found = []
    for path in MODULES.values():
        nodes = list(ast.walk(parsed(path)))
        docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if node in docstrings:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return tuple(found)


def test_each_text_on_the_page_of_errors_is_one_of_the_code() -> None:
    rows = re.findall(r"^\| `(.*?)` \| (.*?) \| (.*?) \|$", ERRORS.read_text(), re.MULTILINE)
    assert len(rows) > 60
    said = [text for text, _, _ in rows]
    known = texts_of_the_code()
    missing = [text for text in (*said, "the server is tired") if not any(text in each for each in known)]
    assert missing == ["the server is tired"], "\n".join(missing)
    assert all(cause and remedy for _, cause, remedy in rows)


def test_the_blocks_for_any_client_run_one_after_the_other(
    flight_server_process: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = flight_server_process()
    found = blocks()
    assert "grpc://127.0.0.1:8815" in found["flight"]
    checked = {
        "flight": found["flight"],
        "http": found["http"] + "\nassert countries.num_rows == frame.height == count[0][0] == 2\n",
        "client": found["client"],
        "async": found["async"],
        "errors": found["errors"],
        "changelogs": found["changelogs"],
        "wire": found["wire"],
        # The last one ends with an error, so all before it have ended without one.
        "retention": found["retention"] + '\nlist(client.do_get(flight.Ticket(b"twice")))\n',
    }
    program = "\n".join(
        f"exec(compile({at(code, server)!r}, {name!r}, 'exec'), {{'__name__': '__main__'}})"
        for name, code in checked.items()
    )
    with pytest.raises(AssertionError, match="as many readers as its retention declares"):
        output_of(program, cwd=tmp_path)
    assert server.http is not None
    url = f"{server.http}/v1/datasets/countries/partitions/0"
    subprocess.run(["curl", "-sf", url, "-o", tmp_path / "countries.arrows"], check=True, timeout=30)
    assert (tmp_path / "countries.arrows").stat().st_size > 0


Blocks = Callable[..., dict[str, Any]]


@pytest.fixture
def run_in_session(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Blocks:
    """Runs blocks one after the other in the session of all tests, with files of the test; what they have defined."""
    monkeypatch.chdir(tmp_path)

    def run_all(*codes: str, **defined: Any) -> dict[str, Any]:
        defined["__name__"] = "__main__"  # else tasks would look for a module of their functions
        # Spark's directory is that in which its process began.
        file = re.compile(r'("checkpointLocation", "|json\("|parquet\("|start\("(?=priced))')
        for code in codes:
            exec(file.sub(rf"\1{tmp_path}/", code), defined)
        return defined

    return run_all


@pytest.mark.spark
def test_the_examples_of_the_data_source_read_what_they_write(
    flight_server_process: Callable[..., ServerProcess],
    run_in_session: Blocks,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = flight_server_process()
    run_in_session(at(blocks()["source"], server), blocks()["each"])
    assert capsys.readouterr().out.splitlines()[3:6] == ["|   0|", "| 500|", "|1000|"]
    for name in ("copy", "doubled"):
        assert spark.read.format("flight").option("location", server.location).load(name).count() == 1500


@pytest.mark.spark
def test_both_jobs_of_the_readme_print_what_stands_there(
    run_in_session: Blocks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLIGHT_SERVER_MEMORY_LIMIT", "1GiB")  # as the notebook's block does
    found = blocks()
    assert all(sum(map(bool, found[block].splitlines())) <= 9 for block in ("before", "spark"))
    readme = found["before"], found["spark"]
    run_in_session(*readme, found["pipelines"], found["writes"], found["collect"], found["notebook"])
    shown = capsys.readouterr().out
    assert shown.count(printed()["spark"]) == 2
    # User 1 has the amounts 1, 1001, 2001, … of which the first is filtered out.
    assert sum(range(1, 1_000_000, 1000)) - 1 == 499_500_999
    assert "|   1|4.99500999E8|" in shown
    revenues: dict[int, float] = {}
    for number in range(100_000):
        if number % 97 > 10:
            revenues[number % 5] = revenues.get(number % 5, 0.0) + number % 97
    best = sorted(revenues, key=lambda segment: -revenues[segment])[:3]
    rows = re.findall(r"^\|\s*(\d)\|\s*([0-9.E]+)\|\s*\d+\|$", shown, re.MULTILINE)
    assert [(int(segment), float(revenue)) for segment, revenue in rows] == [
        (segment, revenues[segment]) for segment in best
    ]
    assert "top 3 by revenue desc" in shown


@pytest.mark.spark
@pytest.mark.long
def test_each_step_of_the_tutorial_prints_what_stands_there(
    run_in_session: Blocks, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    defined: dict[str, Any] = {}
    try:
        for name in TUTORIAL:
            defined = run_in_session(blocks()[name], **defined)
            shown, page = capsys.readouterr().out, printed().get(name, "")
            if name == "tutorial_explain":  # the rest are sizes, times and numbers of tasks
                assert all(f"\n{line}" in f"\n{shown}" for line in page.splitlines()), shown
            else:
                assert shown.rstrip() == page.rstrip()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.spark
@pytest.mark.long
def test_the_orders_of_the_lookup_example_have_the_rates_of_their_time_and_the_package_is_shipped(
    flight_server_process: Callable[..., ServerProcess],
    run_in_session: Blocks,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    defined = run_in_session(at(blocks()["lookups"], flight_server_process()))
    rows = re.findall(r"(\d+)\s*\|\s*([0-9.]+)\s*\|", capsys.readouterr().out)
    assert [(int(number), float(usd)) for number, usd in rows] == [(1, 108.0), (2, 110.0), (3, 7.0)]
    file = str(tmp_path / "flight-shuffle.zip")
    cli.main(["zip", file])
    shuffle, session = defined["shuffle"], defined["spark"].newSession()
    run_in_session(blocks()["ship"].replace("flight-shuffle.zip", file), shuffle=shuffle, spark=session)
    assert session.range(1).mapInArrow(lambda batches: batches, "id long").count() == 1
    shuffle.close()
