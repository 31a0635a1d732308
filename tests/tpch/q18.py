"""The largest orders: an aggregate that is filtered, and small enough to be held for the joins after it."""

from __future__ import annotations

from decimal import Decimal

from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import Tables

SQL = """select c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) as sum_qty
from customer, orders, lineitem
where o_orderkey in (select l_orderkey from lineitem group by l_orderkey having sum(l_quantity) > 300)
    and c_custkey = o_custkey and o_orderkey = l_orderkey
group by c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
order by o_totalprice desc, o_orderdate
limit 100
"""


def q18(tables: Tables) -> Pipeline:
    """See the module."""
    large = (
        tables.scan("lineitem", ["l_orderkey", "l_quantity"])
        .groupBy("l_orderkey")
        .agg(sum_qty=("l_quantity", "sum"))
        .filter(field("sum_qty") > Decimal(300))
    )
    orders = tables.scan("orders", ["o_orderkey", "o_custkey", "o_orderdate", "o_totalprice"]).join(
        tables.broadcast(large), on={"o_orderkey": "l_orderkey"}
    )
    return (
        tables.scan("customer", ["c_name", "c_custkey"])
        .join(tables.broadcast(orders), on={"c_custkey": "o_custkey"})
        .select("c_name", "c_custkey", "o_orderkey", "o_orderdate", "o_totalprice", "sum_qty")
        .orderBy("o_totalprice desc", "o_orderdate")
        .limit(100)
    )
