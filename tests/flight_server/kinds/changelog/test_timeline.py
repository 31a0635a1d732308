"""The horizon against a list of all commits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flight_server.kinds.changelog.timeline import STEPS, Timeline


@given(
    st.lists(st.tuples(st.floats(-0.5, 3), st.booleans()), max_size=60), st.sampled_from([0.0, 1.0, 1000.0])
)
def test_the_horizon_is_old_enough_and_at_most_two_steps_behind(
    waits: list[tuple[float, bool]], delay_seconds: float
) -> None:
    timeline, now, last = Timeline(delay_seconds, 3, 100.0), 100.0, 100.0
    commits = [(100.0, 3)]
    horizons = [0]
    for version, (wait, look) in enumerate(waits, 4):
        now += wait
        last = max(last, now)
        timeline.add(version, now)
        commits.append((last, version))
        assert timeline.last == last
        if look:
            horizon = timeline.horizon(last)
            behind_seconds = 2 * delay_seconds / STEPS
            assert horizon <= max((v for t, v in commits if t <= last - delay_seconds), default=0)
            assert horizon >= max(
                (v for t, v in commits if t <= last - delay_seconds - behind_seconds), default=0
            )
            horizons.append(horizon)
    assert horizons == sorted(horizons)
    assert timeline.horizon(last + delay_seconds + 1.0) == commits[-1][1]
