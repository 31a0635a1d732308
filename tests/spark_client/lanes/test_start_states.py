"""A server as its readers see it: a refusal is an answer, and silence is none."""

from __future__ import annotations

import pytest

from spark_client.lanes.start_states import Sign, StartState, StartStates


@pytest.mark.parametrize(
    ("signs", "state"),
    [
        ([], StartState.ANSWERING),
        ([Sign.SILENCE], StartState.SILENT),
        ([Sign.SILENCE, Sign.SILENCE], StartState.SILENT),
        ([Sign.SILENCE, Sign.ANSWER], StartState.ANSWERING),
        ([Sign.REFUSAL], StartState.LOST),
        ([Sign.SILENCE, Sign.REFUSAL], StartState.LOST),
        ([Sign.REFUSAL, Sign.ANSWER], StartState.LOST),
        ([Sign.REFUSAL, Sign.SILENCE], StartState.LOST),
        ([Sign.REFUSAL, Sign.REFUSAL], StartState.LOST),
        ([Sign.ANSWER], StartState.ANSWERING),
    ],
)
def test_a_silent_server_comes_back_by_answering_and_a_lost_one_never(
    signs: list[Sign], state: StartState
) -> None:
    starts = StartStates()
    for sign in signs:
        starts.notice("start", sign)
    assert starts.of("start") is state
    assert starts.of("another") is StartState.ANSWERING


def test_data_that_any_start_may_have_is_always_asked_for() -> None:
    starts = StartStates()
    starts.notice(None, Sign.REFUSAL)
    assert starts.of(None) is StartState.ANSWERING
