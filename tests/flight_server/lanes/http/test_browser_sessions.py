"""What a browser's cookie stands for, and when it ends."""

from __future__ import annotations

from flight_server.lanes.http.logins import SESSION_SECONDS, SESSIONS_OF_A_TOKEN, BrowserSessions
from tests.support.clocks import Clock


def test_a_session_ends_after_its_time_and_is_forgotten() -> None:
    clock = Clock(0.0)
    sessions = BrowserSessions(clock)
    first = sessions.open("one")
    clock.now = SESSION_SECONDS - 1
    assert sessions.token(first) == "one"
    clock.now = SESSION_SECONDS
    assert sessions.token(first) is None
    sessions.open("two")
    assert len(sessions) == 1


def test_one_token_fills_no_room_of_another() -> None:
    sessions = BrowserSessions()
    quiet = sessions.open("quiet")
    loud = [sessions.open("loud") for _ in range(3 * SESSIONS_OF_A_TOKEN)]
    assert len(sessions) == SESSIONS_OF_A_TOKEN + 1
    assert sessions.token(quiet) == "quiet"
    assert [sessions.token(each) for each in loud[-SESSIONS_OF_A_TOKEN:]] == ["loud"] * SESSIONS_OF_A_TOKEN
    assert sessions.token(loud[-SESSIONS_OF_A_TOKEN - 1]) is None
