"""What suppliers of Asia earned with customers of their own nation: a join on two keys of other names."""

from __future__ import annotations

from datetime import date

from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import REVENUE, Tables

SQL = """select n_name, sum(l_extendedprice * (1 - l_discount)) as revenue
from customer, orders, lineitem, supplier, nation, region
where c_custkey = o_custkey and l_orderkey = o_orderkey and l_suppkey = s_suppkey
    and c_nationkey = s_nationkey and s_nationkey = n_nationkey and n_regionkey = r_regionkey
    and r_name = 'ASIA' and o_orderdate >= date '1994-01-01' and o_orderdate < date '1995-01-01'
group by n_name
order by revenue desc
"""


def q05(tables: Tables) -> Pipeline:
    """See the module."""
    nation = tables.broadcast(tables.scan("nation", ["n_nationkey", "n_name", "n_regionkey"]))
    region = tables.broadcast(tables.scan("region", ["r_regionkey"], field("r_name") == "ASIA"))
    ordered = field("o_orderdate")
    suppliers = (
        tables.scan("supplier", ["s_suppkey", "s_nationkey"])
        .join(nation, on={"s_nationkey": "n_nationkey"})
        .join(region, on={"n_regionkey": "r_regionkey"}, how="semi")
    )
    orders = tables.scan(
        "orders", ["o_orderkey", "o_custkey"], (ordered >= date(1994, 1, 1)) & (ordered < date(1995, 1, 1))
    ).join(tables.scan("customer", ["c_custkey", "c_nationkey"]), on={"o_custkey": "c_custkey"})
    return (
        tables.scan("lineitem", ["l_orderkey", "l_suppkey", "l_extendedprice", "l_discount"])
        .join(tables.broadcast(suppliers), on={"l_suppkey": "s_suppkey"})
        .join(orders, on={"l_orderkey": "o_orderkey", "s_nationkey": "c_nationkey"})
        .select("n_name", revenue=REVENUE)
        .groupBy("n_name")
        .agg(revenue=("revenue", "sum"))
        .orderBy("revenue desc")
    )
