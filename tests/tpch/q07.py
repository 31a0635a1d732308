"""What France and Germany shipped to each other in two years: one table joined twice under two names."""

from __future__ import annotations

from datetime import date

import pyarrow.compute as pc
from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import REVENUE, Tables

SQL = """select supp_nation, cust_nation, l_year, sum(volume) as revenue
from (
    select n1.n_name as supp_nation, n2.n_name as cust_nation, extract(year from l_shipdate) as l_year,
        l_extendedprice * (1 - l_discount) as volume
    from supplier, lineitem, orders, customer, nation n1, nation n2
    where s_suppkey = l_suppkey and o_orderkey = l_orderkey and c_custkey = o_custkey
        and s_nationkey = n1.n_nationkey and c_nationkey = n2.n_nationkey
        and ((n1.n_name = 'FRANCE' and n2.n_name = 'GERMANY')
            or (n1.n_name = 'GERMANY' and n2.n_name = 'FRANCE'))
        and l_shipdate between date '1995-01-01' and date '1996-12-31'
) as shipping
group by supp_nation, cust_nation, l_year
order by supp_nation, cust_nation, l_year
"""


def q07(tables: Tables) -> Pipeline:
    """See the module."""
    shipped = field("l_shipdate")
    nations = tables.broadcast(
        tables.scan("nation", ["n_nationkey", "n_name"], field("n_name").isin(["FRANCE", "GERMANY"]))
    )
    suppliers = (
        tables.scan("supplier", ["s_suppkey", "s_nationkey"])
        .join(nations, on={"s_nationkey": "n_nationkey"})
        .select("s_suppkey", supp_nation="n_name")
    )
    customers = (
        tables.scan("customer", ["c_custkey", "c_nationkey"])
        .join(nations, on={"c_nationkey": "n_nationkey"})
        .select("c_custkey", cust_nation="n_name")
    )
    orders = tables.scan("orders", ["o_orderkey", "o_custkey"]).join(
        tables.broadcast(customers), on={"o_custkey": "c_custkey"}
    )
    return (
        tables.scan(
            "lineitem",
            ["l_orderkey", "l_suppkey", "l_extendedprice", "l_discount", "l_shipdate"],
            (shipped >= date(1995, 1, 1)) & (shipped <= date(1996, 12, 31)),
        )
        .join(tables.broadcast(suppliers), on={"l_suppkey": "s_suppkey"})
        .join(orders, on={"l_orderkey": "o_orderkey"})
        .filter(field("supp_nation") != field("cust_nation"))
        .select("supp_nation", "cust_nation", l_year=pc.year(shipped), volume=REVENUE)
        .groupBy("supp_nation", "cust_nation", "l_year")
        .agg(revenue=("volume", "sum"))
        .orderBy("supp_nation", "cust_nation", "l_year")
    )
