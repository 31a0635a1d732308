"""How much was billed, shipped and returned: one pass over most of the line items."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import ONE, REVENUE, Tables

SQL = """select l_returnflag, l_linestatus, sum(l_quantity) as sum_qty, sum(l_extendedprice) as sum_base_price,
    sum(l_extendedprice * (1 - l_discount)) as sum_disc_price,
    sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) as sum_charge,
    avg(l_quantity) as avg_qty, avg(l_extendedprice) as avg_price, avg(l_discount) as avg_disc,
    count(*) as count_order
from lineitem
where l_shipdate <= date '1998-12-01' - interval '90' day
group by l_returnflag, l_linestatus
order by l_returnflag, l_linestatus
"""


def q01(tables: Tables) -> Pipeline:
    """See the module."""
    # A product of decimals has the digits of both factors, 38 at most: the cast makes room for the next factor.
    charge = REVENUE.cast(pa.decimal128(20, 4)) * (ONE + field("l_tax"))
    return (
        tables.scan(
            "lineitem",
            ["l_returnflag", "l_linestatus", "l_quantity", "l_extendedprice", "l_discount", "l_tax"],
            field("l_shipdate") <= date(1998, 9, 2),
        )
        .select(
            "l_returnflag",
            "l_linestatus",
            "l_quantity",
            "l_extendedprice",
            "l_discount",
            disc_price=REVENUE,
            charge=charge,
        )
        .groupBy("l_returnflag", "l_linestatus")
        .agg(
            sum_qty=("l_quantity", "sum"),
            sum_base_price=("l_extendedprice", "sum"),
            sum_disc_price=("disc_price", "sum"),
            sum_charge=("charge", "sum"),
            avg_qty=("l_quantity", "avg"),
            avg_price=("l_extendedprice", "avg"),
            avg_disc=("l_discount", "avg"),
            count_order=("*", "count"),
        )
        .orderBy("l_returnflag", "l_linestatus")
    )
