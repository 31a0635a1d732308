"""Makes the rule that a ``create`` declares."""

from __future__ import annotations

import pyarrow as pa

from flight_server.protocol import KeepRule, RuleName

from .rule import Greatest, Rule


def make_rule(spec: KeepRule | None, schema: pa.Schema) -> Rule:
    """The rule that a ``create`` declares, for rows of this schema; without a declaration every row is kept.

    Args:
        schema: the declared columns, with all that the rule names, dictionary-encoded ones as their value type.

    Raises InvalidRequest if the declaration does not fit the schema.
    """
    # Imported for the first changelog, not by its first put, which would stop the event loop for 0.1 s: Arrow's compute
    # kernels would cost a server without changelogs the same.
    from .closing import UntilClosed  # noqa: PLC0415  # as said above
    from .declared import check_columns  # noqa: PLC0415  # as said above
    from .pairs import Pairs  # noqa: PLC0415  # as said above

    if spec is None:
        return Rule()
    check_columns(spec, schema)
    match spec.rule:
        case RuleName.LATEST | RuleName.TOP_K:
            return Greatest(spec.k)
        case RuleName.UNTIL_CLOSED:
            return UntilClosed(spec, schema)
        case RuleName.PAIR:
            return Pairs(spec, schema)
