"""One name on a class and on its objects."""

from __future__ import annotations

from spark_client.either import OnClassOrObject


def made(kind: type[Thing], number: int) -> Thing:
    """Make one."""
    thing = kind()
    thing.number = number
    return thing


class Thing:
    number = 0

    def plus(self, more: int) -> int:
        """Add."""
        return self.number + more

    either = OnClassOrObject(made, plus)


class Special(Thing):
    pass


def test_the_class_gets_the_first_function_and_an_object_the_second() -> None:
    thing = Special.either(3)
    assert type(thing) is Special
    assert thing.either(4) == 7
    assert (Thing.either.__doc__, thing.either.__doc__) == ("Make one.", "Add.")
