"""What people see: cells, tables."""

from __future__ import annotations

import pytest

from spark_client.commands.printing import cell, print_table


def test_a_cell_is_short_and_has_no_control_characters() -> None:
    assert cell("\x1b[31mred\n") == "�[31mred�"
    assert len(cell("x" * 1000)) == 80
    assert [cell(1234567), cell(None)] == ["1,234,567", "-"]


def test_a_table_in_a_pipe_is_not_cut_to_a_width(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["n" * 79, "m" * 79]
    print_table(("[bold]a[/bold]", ">b"), [names, names])
    assert capsys.readouterr().out.splitlines()[1].split() == names
