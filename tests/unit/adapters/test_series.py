"""Keys of a series of commands."""

from service.adapters.keys import Series


def keys(key: str | None, *commands: str, start: str = "sandbox") -> list[str | None]:
    series = Series(key, start)
    return [series.next(command, {"timeout": 1}) for command in commands]


def test_the_same_commands_in_the_same_order_have_the_same_keys() -> None:
    first = keys("mine", "a", "b", "a")
    assert keys("mine", "a", "b", "a") == first
    assert len({*first}) == 3, "a command that is repeated is run again"
    assert all(key and key.startswith("mine-") for key in first)


def test_from_the_first_difference_on_all_keys_differ() -> None:
    first = keys("mine", "a", "b", "c")
    other = keys("mine", "a", "x", "c")
    assert [one == two for one, two in zip(first, other, strict=True)] == [True, False, False]
    assert not {*first} & {*keys("mine", "a", "b", "c", start="another sandbox")}
    assert not {*first} & {*keys("yours", "a", "b", "c")}


def test_without_a_key_there_is_none() -> None:
    assert keys(None, "a", "b") == [None, None]
