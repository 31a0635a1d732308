"""The suppliers with the most revenue of a quarter: its maximum is a number of the driver."""

from __future__ import annotations

from datetime import date

from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import REVENUE, Tables

SQL = """with revenue as (
    select l_suppkey as supplier_no, sum(l_extendedprice * (1 - l_discount)) as total_revenue
    from lineitem
    where l_shipdate >= date '1996-01-01' and l_shipdate < date '1996-04-01'
    group by l_suppkey
)
select s_suppkey, s_name, s_address, s_phone, total_revenue
from supplier, revenue
where s_suppkey = supplier_no and total_revenue = (select max(total_revenue) from revenue)
order by s_suppkey
"""


def q15(tables: Tables) -> Pipeline:
    """See the module."""
    shipped = field("l_shipdate")
    revenue = (
        tables.scan(
            "lineitem",
            ["l_suppkey", "l_extendedprice", "l_discount"],
            (shipped >= date(1996, 1, 1)) & (shipped < date(1996, 4, 1)),
        )
        .select("l_suppkey", revenue=REVENUE)
        .groupBy("l_suppkey")
        .agg(total_revenue=("revenue", "sum"))
        .persist()
    )
    (most,) = revenue.agg(most=("total_revenue", "max")).toArrow()["most"].to_pylist()
    best = revenue.filter(field("total_revenue") == most)
    return (
        tables.scan("supplier", ["s_suppkey", "s_name", "s_address", "s_phone"])
        .join(tables.broadcast(best), on={"s_suppkey": "l_suppkey"})
        .select("s_suppkey", "s_name", "s_address", "s_phone", "total_revenue")
        .orderBy("s_suppkey")
    )
