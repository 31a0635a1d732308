"""The share of promoted parts in a month's revenue: two sums, and a column computed of them."""

from __future__ import annotations

from datetime import date

import pyarrow.compute as pc
from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import NO_REVENUE, REVENUE, Tables

SQL = """select 100.00 * sum(case when p_type like 'PROMO%' then l_extendedprice * (1 - l_discount) else 0 end)
    / sum(l_extendedprice * (1 - l_discount)) as promo_revenue
from lineitem, part
where l_partkey = p_partkey and l_shipdate >= date '1995-09-01' and l_shipdate < date '1995-10-01'
"""


def q14(tables: Tables) -> Pipeline:
    """See the module."""
    shipped = field("l_shipdate")
    promo, revenue = field("promo").cast("double"), field("revenue").cast("double")
    return (
        tables.scan(
            "lineitem",
            ["l_partkey", "l_extendedprice", "l_discount"],
            (shipped >= date(1995, 9, 1)) & (shipped < date(1995, 10, 1)),
        )
        .join(tables.scan("part", ["p_partkey", "p_type"]), on={"l_partkey": "p_partkey"})
        .select(
            revenue=REVENUE, promo=pc.if_else(pc.starts_with(field("p_type"), "PROMO"), REVENUE, NO_REVENUE)
        )
        .agg(revenue=("revenue", "sum"), promo=("promo", "sum"))
        .select(promo_revenue=promo / revenue * 100.0)
    )
