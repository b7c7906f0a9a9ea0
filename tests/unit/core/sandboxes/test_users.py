"""The user of a request: numbers as they are, a name as the sandbox's own /etc/passwd has it."""

from __future__ import annotations

from typing import cast

import pytest

from service.core.sandboxes import users
from service.core.sandboxes.users import User
from service.errors import InvalidRequest
from service.ports.engine import Engine, FileMissing, FileRange

PASSWD = b"root:x:0:0::/root:\n#x\nshort:x\nbad:x:one:1::/:\nagent:x:1000:1001::/:\n\xff:x:7:7::/:"


class Sandbox:
    """What a lookup asks of an engine."""

    def __init__(self, passwd: bytes | None) -> None:
        self.passwd = passwd
        self.reads = 0

    async def read_file(self, sandbox_id: str, path: str, offset: int, length: int) -> FileRange:
        self.reads += 1
        if self.passwd is None:
            raise FileMissing("no")
        return FileRange(offset, self.passwd, len(self.passwd))


async def lookup(text: str | None, passwd: bytes | None = PASSWD) -> tuple[User | None, int]:
    sandbox = Sandbox(passwd)
    return await users.lookup(cast(Engine, sandbox), "s", text), sandbox.reads


async def test_a_name_is_looked_up_in_the_sandbox_by_one_read() -> None:
    assert await lookup("agent") == (User(1000, 1001), 1)
    assert await lookup("root") == (User(0, 0), 1)


async def test_numbers_and_nothing_need_no_look() -> None:
    assert await lookup("1000") == (User(1000), 0)
    assert await lookup("1000:50") == (User(1000, 50), 0)
    assert await lookup(None) == (None, 0)


@pytest.mark.parametrize("name", ["nobody-here", "short", "bad", "#x", "roo", "root2"])
async def test_a_name_that_the_sandbox_has_not_is_a_problem_of_that_field(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await lookup(name)
    assert [error.field for error in refused.value.errors] == ["user"]


async def test_a_sandbox_without_the_file_has_no_names() -> None:
    with pytest.raises(InvalidRequest):
        await lookup("root", None)


@pytest.mark.parametrize(
    "text",
    ["", " ", "a b", "a:b", ":1", "1:", "1:2:3", "-1", "4294967295", "0:4294967295", "a\0", "a/b", "x" * 257, "\ud800"],
)
def test_what_is_neither_name_nor_numbers_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        users.parse(text)
