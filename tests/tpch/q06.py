"""What a year without small discounts would have brought: filtered while the files are read, one row of all."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import Tables

SQL = """select sum(l_extendedprice * l_discount) as revenue
from lineitem
where l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01'
    and l_discount between 0.05 and 0.07 and l_quantity < 24
"""


def q06(tables: Tables) -> Pipeline:
    """See the module."""
    shipped, discount = field("l_shipdate"), field("l_discount")
    return (
        tables.scan(
            "lineitem",
            ["l_extendedprice", "l_discount"],
            (shipped >= date(1994, 1, 1))
            & (shipped < date(1995, 1, 1))
            & (discount >= Decimal("0.05"))
            & (discount <= Decimal("0.07"))
            & (field("l_quantity") < Decimal(24)),
        )
        .select(revenue=field("l_extendedprice") * discount)
        .agg(revenue=("revenue", "sum"))
    )
