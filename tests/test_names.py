"""Names stand for one thing each, and what a docstring names is there."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Sequence

from tests.support.rooms import MODULES, ROOT, parsed, sources

# The two ends of one lane have one name.
SAME_NAMES = frozenset({"__init__", "bulk_get", "bulk_put", "grpc_get", "grpc_put"})
# Public classes that two modules call alike. The list only gets shorter.
SAME_CLASSES = frozenset({"Body", "Changelog", "Request"})
# A name says what a thing is; these say only that something came by, and each stood for a dozen things.
VAGUE = frozenset({"asked", "found", "given", "said", "settled", "taken", "there", "told", "wanted"})
# A room that still has some, and the column of a table in the database.
STILL_VAGUE = ("flight_server/records/changelog_records.py",)


def test_no_two_modules_share_a_name() -> None:
    found = defaultdict(list)
    for path in sources("flight_server") + sources("spark_client"):
        if path.stem not in SAME_NAMES:
            found[path.stem].append(path.relative_to(ROOT).as_posix())
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}


def test_a_public_class_name_stands_for_one_thing() -> None:
    found = defaultdict(list)
    for name, path in MODULES.items():
        for class_name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(), re.MULTILINE):
            found[class_name].append(name)
    twice = {name: modules for name, modules in found.items() if len(modules) > 1}
    assert twice.keys() == SAME_CLASSES, {name: twice.get(name) for name in twice.keys() ^ SAME_CLASSES}


def test_a_name_says_what_a_thing_is() -> None:
    # What binds a name has one of these behind it; all else needs no syntax tree, which takes seconds for all files.
    candidate = re.compile(rf"\b_?(?:{'|'.join(VAGUE)})_? *(?:[,:()=]|in )")
    vague = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', '')} {name}"
        for path in sources("flight_server") + sources("spark_client")
        if not path.relative_to(ROOT).as_posix().startswith(STILL_VAGUE)
        and candidate.search(path.read_text())
        for node in ast.walk(parsed(path))
        if (name := _bound(node)).strip("_") in VAGUE
    ]
    assert not vague, "\n".join(vague)


def _bound(node: ast.AST) -> str:
    """The name that a node of a module's tree binds, if it binds one."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
        case ast.arg(arg=name) | ast.ClassDef(name=name):
            return name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return name
        case _:
            return ""


def test_what_a_docstring_refers_to_by_its_whole_name_is_there() -> None:
    reference = re.compile(r":\w+:`~?((?:flight_server|spark_client)[\w.]*)`")
    for name, path in MODULES.items():
        for wanted in reference.findall(path.read_text()):
            assert _is_there(wanted), f"{name} refers to {wanted}"


def _is_there(name: str) -> bool:
    """Whether it is a module, or is defined in one, or is in something imported there."""
    module, rest = name, list[str]()
    while module not in MODULES:
        module, _, last = module.rpartition(".")
        rest.insert(0, last)
        if not module:
            return False
    body: Sequence[ast.stmt] = parsed(MODULES[module]).body
    for part in rest:
        found = [node for node in body if part in _names(node)]
        if not found or isinstance(found[0], ast.ImportFrom):
            return bool(found)
        body = found[0].body if isinstance(found[0], ast.ClassDef) else ()
    return True


def _names(node: ast.stmt) -> set[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.ImportFrom(names=aliases):
            return {alias.asname or alias.name for alias in aliases}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case _:
            return set()
