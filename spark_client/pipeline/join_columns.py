"""The columns of a join's result, as Spark names, orders and types them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql.types import StructField, StructType

from flight_server.protocol import InvalidRequest
from spark_client.joining import Column, How

from .wider_types import wider


def joined_columns(
    left: StructType,
    right: StructType,
    keys: Sequence[tuple[str, str]],
    how: How,
    where: str,
    *,
    suffix: str | None,
    folded: Callable[[str], str],
) -> tuple[tuple[Column, ...], list[StructField]]:
    """The result's columns, and their fields in Spark.

    Args:
        keys: the sides' names of each key, as the schemas have them.
        folded: of a name, what is the same for names that are the same.

    Raises:
        InvalidRequest: a name would be there twice.
    """
    shared = [(one, two) for one, two in keys if folded(one) == folded(two)]
    lefts, rights = dict(shared), {two for _, two in shared}
    ours, theirs = ({field.name: field for field in side} for side in (left, right))
    columns, fields = list[Column](), list[StructField]()
    for one, two in shared:
        column, field = _key(ours[one], theirs[two], how)
        columns.append(column)
        fields.append(field)
    for field in left:
        if field.name not in lefts:
            columns.append(Column(field.name, None))
            fields.append(_nullable(field, field.name, always=how in ("right", "full")))
    if how in ("semi", "anti"):
        return tuple(columns), fields
    taken = {folded(field.name) for field in fields}
    for field in right:
        if field.name in rights:
            continue
        name = field.name
        if folded(name) in taken and suffix is not None:
            name += suffix
        if folded(name) in taken:
            raise InvalidRequest(
                f"{where}: both sides have a column {name!r}; rename one before, or give suffix= for those of the "
                "right side",
                column=name,
            )
        taken.add(folded(name))
        columns.append(Column(None, field.name))
        fields.append(_nullable(field, name, always=how in ("left", "full")))
    return tuple(columns), fields


def _key(left: StructField, right: StructField, how: How) -> tuple[Column, StructField]:
    """A key of one name, which the result has once."""
    if how == "right":
        return Column(None, right.name), right
    if how != "full":
        return Column(left.name, None), left
    # Of types that are compared, those without a wider one hold the same values.
    kind = wider(left.dataType, right.dataType) or left.dataType
    return Column(left.name, right.name), StructField(left.name, kind, nullable=True)


def _nullable(field: StructField, name: str, *, always: bool) -> StructField:
    return StructField(name, field.dataType, nullable=field.nullable or always, metadata=field.metadata)
