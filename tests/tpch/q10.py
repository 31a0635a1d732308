"""The twenty customers who returned most: added up before the customers are joined."""

from __future__ import annotations

from datetime import date

from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import REVENUE, Tables

SQL = """select c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) as revenue, c_acctbal, n_name, c_address,
    c_phone, c_comment
from customer, orders, lineitem, nation
where c_custkey = o_custkey and l_orderkey = o_orderkey and o_orderdate >= date '1993-10-01'
    and o_orderdate < date '1994-01-01' and l_returnflag = 'R' and c_nationkey = n_nationkey
group by c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
order by revenue desc
limit 20
"""


def q10(tables: Tables) -> Pipeline:
    """See the module."""
    nation = tables.broadcast(tables.scan("nation", ["n_nationkey", "n_name"]))
    ordered = field("o_orderdate")
    orders = tables.scan(
        "orders", ["o_orderkey", "o_custkey"], (ordered >= date(1993, 10, 1)) & (ordered < date(1994, 1, 1))
    )
    returned = (
        tables.scan("lineitem", ["l_orderkey", "l_extendedprice", "l_discount"], field("l_returnflag") == "R")
        .join(orders, on={"l_orderkey": "o_orderkey"})
        .select("o_custkey", revenue=REVENUE)
        .groupBy("o_custkey")
        .agg(revenue=("revenue", "sum"))
    )
    return (
        tables.scan(
            "customer",
            ["c_custkey", "c_name", "c_acctbal", "c_nationkey", "c_address", "c_phone", "c_comment"],
        )
        .join(nation, on={"c_nationkey": "n_nationkey"})
        .join(returned, on={"c_custkey": "o_custkey"})
        .select("c_custkey", "c_name", "revenue", "c_acctbal", "n_name", "c_address", "c_phone", "c_comment")
        .orderBy("revenue desc")
        .limit(20)
    )
