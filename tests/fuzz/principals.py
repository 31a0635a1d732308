"""Two servers, one of them with a second principal: the first principal must not be able to tell which.

``Authority`` is written from the words of the design, not from the code. It says of each call what may come of it:

* A principal sees a dataset with any permission on a prefix of its name. Everything else does not exist for it.
* Calls that may make a dataset are refused by the name alone.
* With sight but without the permission a call is refused as such.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.raw_flight import RawFlight
from tests.support.server_process import ServerProcess
from tests.support.token_hashes import hash_of_token

from .principal_calls import Call, Side, draw, stolen

GRANTS: dict[str, dict[str, list[str]]] = {
    "a": {
        "read": ["a/", "d/x", "d/partitions/"],
        "write": ["a/w", "a/x", "a/partitions/", "d/x", "d/partitions/"],
        "admin": ["a/adm/"],
    },
    "b": {"read": ["b/", "d", "a"], "write": ["b/", "d", "a"]},
    "reader": {"read": ["b/"]},
    "forger": {"read": ["c/"], "write": ["c/"]},
    "root": {"read": [""], "write": [""], "admin": [""]},
}
A_NAMES = ["a/w1", "a/w", "a/wx/y", "a/x", "a/partitions/x", "a/ro", "a/adm/x", "d/x", "d/partitions/x"]
B_NAMES = ["b/x", "b/y", "d", "a", "ab", "d/y", "d/y/partitions/z"]
"""Of the second principal, which keeps to names that the first does not see."""
FORGED = ["c/x", "c/y"]
READS = {"info", "poll", "schema", "get", "GET", "HEAD", "plan", "acknowledge", "hold", "POST hold", "copies"}
WRITES = {"seal", "drop", "cancel"}
SIGHTS = {"renew", "renew endpoint"}
NEW = {"create", "put"}


def token_file(
    path: Path, grants: dict[str, dict[str, list[str]]], quotas: dict[str, str] | None = None
) -> None:
    lines = []
    for name, prefixes in grants.items():
        lines += [f"[principals.{name}]", f'tokens = ["{hash_of_token(name)}"]']
        lines += [f"{permission} = {each}" for permission, each in prefixes.items()]
        lines += [f"quotas = {quotas[name]}"] if quotas and name in quotas else []
    new = path.with_suffix(".new")
    new.write_text("\n".join(lines))
    new.replace(path)


class Authority:
    """What may come of a call of each principal. ``there``: the names that lead to a dataset, as far as it is known."""

    def __init__(self) -> None:
        self.there: dict[str, bool | None] = {}

    def wrong(self, principal: str, call: Call, status: str) -> str | None:
        """Why the status is wrong; None if it is not."""
        if principal not in GRANTS:
            return None if status == "UNAUTHENTICATED" else "its token is none"
        if status == "UNAUTHENTICATED":
            return "its token is right"
        denied, missing = status == "PERMISSION_DENIED", status == "NOT_FOUND"
        if call.what in ("GET history", "GET metrics"):
            return None if denied == (principal != "root") else "the numbers of the server are for root"
        if call.what not in READS | WRITES | SIGHTS | NEW:
            return "every principal may ask that" if denied else None
        may = self._may(principal, call)
        if "NOT_FOUND" in may or "PERMISSION_DENIED" in may:
            return None if status in may else f"it may only be {' or '.join(sorted(may))}"
        if denied and call.what not in ("hold", "POST hold") and call.given.get("kind") != "source":
            return "it has the permission"
        if (
            missing
            and call.what in ("info", "schema", "drop", "renew")
            and call.given.get("partition") is None
        ):
            plain = call.given.get("generation") is None and not call.given.get("staged")
            return "the dataset is there" if plain and self.there.get(call.name) else None
        return None

    def note(self, call: Call, status: str) -> None:
        """What the call has changed."""
        if call.what == "create" and status == "OK":
            if call.given.get("mode") is None:
                self.there[call.name] = True
        elif (call.what == "drop" and status == "OK") or call.what in ("put", "seal", "cancel", "create"):
            self.there[call.name] = None

    def _may(self, principal: str, call: Call) -> set[str]:
        name, end = call.name, call.given.get("end") or ""
        if call.what in NEW:
            return set() if _has(principal, "write", name) else {"PERMISSION_DENIED"}
        if call.what in ("get", "cancel", "renew endpoint") and not call.given["json"]:
            # A ticket that is a text has the number of a partition of what stands before it.
            name += "/partitions" if end.startswith("/partitions/") else ""
        elif call.what in ("GET", "HEAD") and end in ("/0", "/3"):
            return set()  # which is no name
        needed = "write" if call.what in WRITES else None if call.what in SIGHTS else "read"
        if not _sees(principal, name):
            return {"NOT_FOUND"}
        denied = (needed is not None and not _has(principal, needed, name)) or (
            call.given.get("verb") == "withdraw" and not _has(principal, "write", name)
        )
        return {"PERMISSION_DENIED"} if denied else set()


def _has(principal: str, permission: str, name: str) -> bool:
    grants = GRANTS[principal]
    prefixes = [*grants.get(permission, []), *(grants.get("admin", []) if permission == "write" else [])]
    return name.startswith(tuple(prefixes))


def _sees(principal: str, name: str) -> bool:
    return any(name.startswith(tuple(each)) for each in GRANTS[principal].values())


class Apart:
    """The two servers and their principals. ``findings``: of each kind the first one."""

    def __init__(self, noisy: ServerProcess, quiet: ServerProcess, seed: int) -> None:
        self.chance = random.Random(seed)  # a test is to be repeated
        self.findings: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        starts = [_start_of(noisy), _start_of(quiet)]
        self.b = Side(noisy, "b", starts[0])
        self.noisy, self.quiet = Side(noisy, "a", starts[0]), Side(quiet, "a", starts[1], drawn=False)
        self.others = {each: Side(noisy, each, starts[0]) for each in ("reader", "wrong", "forger")}
        self.roots = Side(noisy, "root", starts[0]), Side(quiet, "root", starts[1])
        self.authority = Authority()
        self.last: list[str] = []
        for name in ("a/ro", "a/adm/x"):
            for root in self.roots:
                assert root.made(Call("put", name, {"rows": 2, "value": 1, "command": None}))[0] == "OK"

    def close(self) -> None:
        for each in (self.b, self.noisy, self.quiet, *self.others.values(), *self.roots):
            each.close()

    def step(self) -> None:
        """One call: of the first principal on both servers, or of another on one of them."""
        who = self.chance.choices(["a", "b", "reader", "wrong", "forger"], [6, 5, 1, 1, 2])[0]
        if who == "a":
            call = draw(self.chance, A_NAMES, B_NAMES)
            before = self._unwritable()
            self.compared(call)
            after = self._unwritable()
            if before != after:
                self._found(f"{call.what} changed another's", f"{call}: {[*_differences(before, after)]}")
        elif who == "b":
            self.asked("b", self.b, _call_of_b(self.chance))
        else:
            before = self._unwritable()
            mine = FORGED if who == "forger" else B_NAMES
            call = draw(self.chance, mine, B_NAMES, forges=True)
            self.asked(who, self.others[who], stolen(call, self.b.generations))
            after = self._unwritable()
            if before != after:
                self._found(
                    f"{call.what} of {who} changed another's", f"{call}: {[*_differences(before, after)]}"
                )

    def asked(self, who: str, side: Side, call: Call) -> tuple[str, Any]:
        status, answer = side.made(call)
        self.counts[f"{who} {status}"] += 1
        self.last = [*self.last[-8:], f"{who} {call} {status}"]
        if (why := self.authority.wrong(who, call, status)) is not None:
            self._found(f"{who} {call.what} {status}: {why}", f"{call}: {answer}")
        if status not in ("PERMISSION_DENIED", "UNAUTHENTICATED") and who in ("a", "b"):
            self.authority.note(call, status)
        return status, answer

    def compared(self, call: Call) -> None:
        call = stolen(call, self.b.generations)
        quiet = self.quiet.made(call)
        noisy = self.asked("a", self.noisy, call)
        if "DEADLINE_EXCEEDED" in (quiet[0], noisy[0]):
            if quiet[0] != noisy[0]:
                self._found(f"a waits: {call.what}", f"{call}: {quiet} {noisy}")
            self._settle()
        elif quiet != noisy and call.what.removeprefix("GET ") in ("statistics", "why"):
            # A call of its own that was refused may be on its way out.
            self._settle()
            quiet, noisy = self.quiet.made(call), self.noisy.made(call)
        if quiet != noisy and "DEADLINE_EXCEEDED" not in (quiet[0], noisy[0]):
            differ = "\n    ".join(_differences(quiet, noisy))
            self._found(f"a sees: {call.what} {quiet[0]} {noisy[0]}", f"{call}:\n    {differ}")

    def at_once(self, calls: int) -> None:
        """Calls of the first principal while the second one does not stop."""
        ended = threading.Event()
        chance = random.Random(self.chance.random())  # as above

        def busy() -> None:
            while not ended.is_set():
                self.b.made(_call_of_b(chance))

        thread = threading.Thread(target=busy)
        thread.start()
        try:
            for _ in range(calls):
                self.compared(draw(self.chance, A_NAMES, B_NAMES))
        finally:
            ended.set()
            thread.join()
        self.authority.there.clear()

    def _settle(self) -> None:
        """Wait until no read that was given up is left."""
        deadline = time.monotonic() + 5
        for side in (self.quiet, self.noisy):
            while side.raw.action("why")["count"] and time.monotonic() < deadline:
                time.sleep(0.01)

    def _unwritable(self) -> Any:
        """What the second principal has, as root sees it: without leases, readers and peers."""
        root = self.roots[0]
        answer = root.made(Call("statistics", "", {"of": False, "order": "name"}))[1]
        own = {name: each for name, each in answer["datasets"].items() if name in B_NAMES}
        kept = {name: {k: v for k, v in each.items() if k not in _MOVING} for name, each in own.items()}
        staged = [each for each in answer["staged"]["writes"] if each["dataset"] in B_NAMES]
        copies = []
        for name in sorted(own):
            body = {"dataset": name, "generation": self.b.generations.get(name, "0" * 16), "verb": "which"}
            copies.append(root.raw.action("copies", body))
        return [kept, staged, copies, self.b.generations.copy()]

    def _found(self, what: str, text: str) -> None:
        if what not in self.findings:
            before = "\n    ".join(self.last)
            self.findings[what] = f"{text}\n  after\n    {before}"


def _call_of_b(chance: random.Random) -> Call:
    """Not on ``d/3``, which may be a dataset that the first principal sees."""
    call = draw(chance, B_NAMES, [])
    return replace(call, given={**call.given, "end": ""}) if "3" in call.given.get("end", "") else call


def _differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from _differences(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from _differences(*pair, f"{where}[{number}]")
    elif one != other:
        yield f"{where}: {one!r} alone, {other!r} beside another"


def _start_of(server: ServerProcess) -> str:
    with RawFlight(server.location, token="root") as raw:
        return str(raw.action("locations")["start"])


_MOVING = {"readers", "runs", "merges", "merged_bytes", "bytes", "debt", "log_bytes"}
"""Of a dataset: what goes on without any call."""
