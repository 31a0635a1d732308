"""The share of Brazil in America's market for a part, by year: small tables are held by every task."""

from __future__ import annotations

from datetime import date

import pyarrow.compute as pc
from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import NO_REVENUE, REVENUE, Tables

SQL = """select o_year, sum(case when nation = 'BRAZIL' then volume else 0 end) / sum(volume) as mkt_share
from (
    select extract(year from o_orderdate) as o_year, l_extendedprice * (1 - l_discount) as volume,
        n2.n_name as nation
    from part, supplier, lineitem, orders, customer, nation n1, nation n2, region
    where p_partkey = l_partkey and s_suppkey = l_suppkey and l_orderkey = o_orderkey
        and o_custkey = c_custkey and c_nationkey = n1.n_nationkey and n1.n_regionkey = r_regionkey
        and r_name = 'AMERICA' and s_nationkey = n2.n_nationkey
        and o_orderdate between date '1995-01-01' and date '1996-12-31'
        and p_type = 'ECONOMY ANODIZED STEEL'
) as all_nations
group by o_year
order by o_year
"""


def q08(tables: Tables) -> Pipeline:
    """See the module."""
    ordered = field("o_orderdate")
    nation = tables.broadcast(tables.scan("nation", ["n_nationkey", "n_name", "n_regionkey"]))
    region = tables.broadcast(tables.scan("region", ["r_regionkey"], field("r_name") == "AMERICA"))
    customers = (
        tables.scan("customer", ["c_custkey", "c_nationkey"])
        .join(nation, on={"c_nationkey": "n_nationkey"})
        .join(region, on={"n_regionkey": "r_regionkey"}, how="semi")
    )
    suppliers = tables.scan("supplier", ["s_suppkey", "s_nationkey"]).join(
        nation, on={"s_nationkey": "n_nationkey"}
    )
    orders = tables.scan(
        "orders",
        ["o_orderkey", "o_custkey", "o_orderdate"],
        (ordered >= date(1995, 1, 1)) & (ordered <= date(1996, 12, 31)),
    ).join(tables.broadcast(customers), on={"o_custkey": "c_custkey"}, how="semi")
    parts = tables.scan("part", ["p_partkey"], field("p_type") == "ECONOMY ANODIZED STEEL")
    brazil = field("n_name") == "BRAZIL"
    return (
        tables.scan("lineitem", ["l_orderkey", "l_partkey", "l_suppkey", "l_extendedprice", "l_discount"])
        .join(tables.broadcast(parts), on={"l_partkey": "p_partkey"}, how="semi")
        .join(tables.broadcast(suppliers), on={"l_suppkey": "s_suppkey"})
        .join(orders, on={"l_orderkey": "o_orderkey"})
        .select(o_year=pc.year(ordered), volume=REVENUE, brazil=pc.if_else(brazil, REVENUE, NO_REVENUE))
        .groupBy("o_year")
        .agg(volume=("volume", "sum"), brazil=("brazil", "sum"))
        .select("o_year", mkt_share=field("brazil").cast("double") / field("volume").cast("double"))
        .orderBy("o_year")
    )
