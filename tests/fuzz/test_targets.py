"""Every parser takes changed samples, or refuses them as it documents; and the inputs that were findings once."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS
from tests.fuzz.targets.target import CORPUS, WORDS, Target


@st.composite
def changed(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A sample with one to three changes."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        size = draw(st.sampled_from([0, 1, 1, 2, 4, 8, len(data)]))
        put = draw(
            st.one_of(st.sampled_from(WORDS), st.binary(max_size=8), st.just(bytes(data[:start][-9:])))
        )
        data[start : start + size] = put
    return bytes(data)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_changed_samples_are_taken_or_refused_as_documented(target: Target) -> None:
    with target.running() as call:

        @settings(suppress_health_check=list(HealthCheck))
        @given(data=changed(target.seeds()))
        def check(data: bytes) -> None:
            call(data)

        check()


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_samples_and_earlier_findings_are_taken_or_refused_as_documented(target: Target) -> None:
    with target.running() as call:
        for data in target.seeds():
            call(data)


def test_most_samples_are_taken() -> None:
    # Of samples that are all refused, changed ones would reach no code.
    for target in TARGETS.values():
        samples, taken = target.samples(), 0
        with target.opened() as call:
            for data in samples:
                try:
                    call(data)
                    taken += 1
                except target.documented:
                    pass
        assert taken * 4 >= len(samples), target.name


def test_each_earlier_finding_is_of_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= TARGETS.keys()
