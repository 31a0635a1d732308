"""A server as its readers see it: a refusal is an answer, and silence is none."""

from __future__ import annotations

import pytest

from spark_client.lanes.start_states import StartState, StartStates

_ANSWER, _SILENCE, _REFUSAL = StartState


@pytest.mark.parametrize(
    ("signs", "state"),
    [
        ([], StartState.ANSWERING),
        ([_SILENCE, _SILENCE], StartState.SILENT),
        ([_SILENCE, _ANSWER], StartState.ANSWERING),
        ([_SILENCE, _REFUSAL], StartState.LOST),
        ([_REFUSAL, _ANSWER], StartState.LOST),
        ([_REFUSAL, _SILENCE], StartState.LOST),
    ],
)
def test_a_silent_server_comes_back_by_answering_and_a_lost_one_never(
    signs: list[StartState], state: StartState
) -> None:
    starts = StartStates()
    for sign in signs:
        starts.notice("start", sign)
        starts.notice(None, sign)
    assert starts.of("start") is state
    assert starts.of("another") is StartState.ANSWERING
    assert starts.of(None) is StartState.ANSWERING  # data that any start may have
