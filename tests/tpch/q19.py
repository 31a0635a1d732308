"""Revenue of parts in three combinations of brand, container and quantity: a condition over both sides."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import REVENUE, Tables

SQL = """select sum(l_extendedprice * (1 - l_discount)) as revenue
from lineitem, part
where p_partkey = l_partkey and l_shipmode in ('AIR', 'AIR REG') and l_shipinstruct = 'DELIVER IN PERSON'
    and ((p_brand = 'Brand#12' and p_container in ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')
            and l_quantity between 1 and 11 and p_size between 1 and 5)
        or (p_brand = 'Brand#23' and p_container in ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')
            and l_quantity between 10 and 20 and p_size between 1 and 10)
        or (p_brand = 'Brand#34' and p_container in ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')
            and l_quantity between 20 and 30 and p_size between 1 and 15))
"""


def q19(tables: Tables) -> Pipeline:
    """See the module."""
    quantity, size = field("l_quantity"), field("p_size")

    def kind(brand: str, containers: list[str], least: int, largest: int) -> Any:
        return (
            (field("p_brand") == brand)
            & field("p_container").isin(containers)
            & (quantity >= Decimal(least))
            & (quantity <= Decimal(least + 10))
            & (size >= 1)
            & (size <= largest)
        )

    small = kind("Brand#12", ["SM CASE", "SM BOX", "SM PACK", "SM PKG"], 1, 5)
    medium = kind("Brand#23", ["MED BAG", "MED BOX", "MED PKG", "MED PACK"], 10, 10)
    large = kind("Brand#34", ["LG CASE", "LG BOX", "LG PACK", "LG PKG"], 20, 15)
    return (
        tables.scan(
            "lineitem",
            ["l_partkey", "l_quantity", "l_extendedprice", "l_discount"],
            field("l_shipmode").isin(["AIR", "AIR REG"]) & (field("l_shipinstruct") == "DELIVER IN PERSON"),
        )
        .join(
            tables.scan("part", ["p_partkey", "p_brand", "p_size", "p_container"]),
            on={"l_partkey": "p_partkey"},
        )
        .filter(small | medium | large)
        .select(revenue=REVENUE)
        .agg(revenue=("revenue", "sum"))
    )
