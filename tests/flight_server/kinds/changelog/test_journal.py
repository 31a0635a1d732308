"""What the journal writes is what it reads; anything else is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flight_server.kinds.changelog.holds import Hold
from flight_server.kinds.changelog.journal import (
    LoggedCommit,
    StateRecord,
    commit_entry,
    commits_of,
    hold_entry,
    log_name,
    numbered,
    ours,
    release_entry,
    run_name,
)
from flight_server.kinds.changelog.runs import STATE_NAME, UNFINISHED_NAME, Damaged, LogEntry

STATE = StateRecord(
    dataset="d",
    generation="g",
    schema="s",
    keep=None,
    delay_seconds=1.0,
    lease_seconds=None,
    runs=[("run-000001", None), ("run-1000000", 4)],
    holds={"a": [3, 5.5, 1.5, None]},
)


def test_a_state_is_read_as_it_was_written() -> None:
    assert StateRecord.parse(json.loads(json.dumps(STATE.to_json()))) == STATE


@pytest.mark.parametrize(
    "change",
    [
        {"unknown": 1},
        {"runs": [["../run-000001", None]]},
        {"runs": [["run-000001"]]},
        {"runs": 5},
        {"runs": [["run-1", 2]]},
        {"transactions": {"a": 7}},
        {"transactions": {"a": [7, 2]}},
    ],
)
def test_a_state_with_other_fields_is_damaged(change: dict[str, object]) -> None:
    with pytest.raises(Damaged):
        StateRecord.parse(STATE.to_json() | change)


@pytest.mark.parametrize("name", STATE.to_json())
def test_a_state_that_lacks_a_field_is_damaged(name: str) -> None:
    lacking = STATE.to_json()
    del lacking[name]
    with pytest.raises(Damaged, match=f"lacks {name}"):
        StateRecord.parse(lacking)


def test_commits_are_read_as_they_were_written() -> None:
    commits = [LoggedCommit(4, 1.5, 10, None), LoggedCommit(5, 1.5, 0, ("writer", 7))]
    entry = commit_entry(commits, ["run-000001"], b"body")
    assert commits_of(LogEntry(json.loads(json.dumps(entry.header)), entry.body)) == commits
    assert entry.header["files"] == ["run-000001"]
    assert "files" not in commit_entry(commits, [], b"").header
    assert commits_of(hold_entry("a", Hold(3, 1.0, 1.0))) == commits_of(release_entry(["a"])) == []


@pytest.mark.parametrize(
    "said", [5, [5], [[1, 2, 3]], [["x", 1.0, 1, None]], [[1, 1.0, 1, ["id"]]], [[1, 1.0, 1, 3]]]
)
def test_commits_with_other_fields_are_damaged(said: object) -> None:
    with pytest.raises(Damaged):
        commits_of(LogEntry({"commits": said}, b""))


def test_files_are_found_by_their_numbers(tmp_path: Path) -> None:
    names = [log_name(2), log_name(1), run_name(1_000_000), run_name(999_999)]
    for name in [*names, "log-1", "run-000001x", STATE_NAME]:
        (tmp_path / name).touch()
    logs, runs = numbered(tmp_path)
    assert logs == {1: tmp_path / "log-000001", 2: tmp_path / "log-000002"}
    assert list(runs) == [999_999, 1_000_000]
    assert all(ours(name) for name in (*names, STATE_NAME, UNFINISHED_NAME))
    assert not any(ours(name) for name in ("log-1", "run-000001x", "flight-server.json", "other"))
