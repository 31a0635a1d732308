"""The ten orders with the most revenue that was not shipped on a day: a join, a semi join, the first rows."""

from __future__ import annotations

from datetime import date

from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import REVENUE, Tables

SQL = """select l_orderkey, sum(l_extendedprice * (1 - l_discount)) as revenue, o_orderdate, o_shippriority
from customer, orders, lineitem
where c_mktsegment = 'BUILDING' and c_custkey = o_custkey and l_orderkey = o_orderkey
    and o_orderdate < date '1995-03-15' and l_shipdate > date '1995-03-15'
group by l_orderkey, o_orderdate, o_shippriority
order by revenue desc, o_orderdate
limit 10
"""


def q03(tables: Tables) -> Pipeline:
    """See the module."""
    day = date(1995, 3, 15)
    customers = tables.scan("customer", ["c_custkey"], field("c_mktsegment") == "BUILDING")
    orders = tables.scan(
        "orders", ["o_orderkey", "o_custkey", "o_orderdate", "o_shippriority"], field("o_orderdate") < day
    ).join(tables.broadcast(customers), on={"o_custkey": "c_custkey"}, how="semi")
    return (
        tables.scan("lineitem", ["l_orderkey", "l_extendedprice", "l_discount"], field("l_shipdate") > day)
        .select("l_orderkey", revenue=REVENUE)
        .join(orders, on={"l_orderkey": "o_orderkey"})
        .groupBy("l_orderkey", "o_orderdate", "o_shippriority")
        .agg(revenue=("revenue", "sum"))
        .orderBy("revenue desc", "o_orderdate")
        .limit(10)
    )
