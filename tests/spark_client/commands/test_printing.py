"""What people see: durations, cells, tables."""

from __future__ import annotations

import pytest

from spark_client.commands.printing import cell, duration, print_table


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-1.0, "0 s"),
        (59.4, "59 s"),
        (3600.0, "1 h 0 min"),
        (6.95 * 86_400, "6 d 22 h"),
        (86_400.0, "1 d 0 h"),
    ],
)
def test_a_duration_has_its_two_greatest_units(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_a_cell_is_short_and_has_no_control_characters() -> None:
    assert cell("\x1b[31mred\n") == "�[31mred�"
    assert len(cell("x" * 1000)) == 80
    assert [cell(1234567), cell(None)] == ["1,234,567", "-"]


def test_a_table_in_a_pipe_is_not_cut_to_a_width(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["n" * 79, "m" * 79]
    print_table(("[bold]a[/bold]", ">b"), [names, names])
    assert capsys.readouterr().out.splitlines()[1].split() == names
