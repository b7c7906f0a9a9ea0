"""What the fence's texts are made from, and how what they print is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.fence import protocol
from service.core.fence.protocol import Boot, Fence, Marker

TOKEN, OTHER, RANDOM = "0123456789abcdef" * 2, "f" * 32, "1" * 32
RUN = b"fp=abc\ntimeout=60\npid=7\nlog=/tmp/x.output\n"


def wrapper(**change: object) -> tuple[str, dict[str, str]]:
    how = {"directory": "/tmp/.oncebox", "token": TOKEN, "fingerprint": "abc", "boot": f"{RANDOM} 7", "timeout": 60}
    return protocol.wrapper("echo hi", {"A": "b"}, **(how | change))  # type: ignore[arg-type]


# -- texts


def test_the_wrapper_is_short_carries_the_token_and_leaves_the_rest_to_the_environment() -> None:
    text, env = wrapper()
    assert len(text) < 100
    assert TOKEN in text
    assert env["ONCEBOX_COMMAND"] == "echo hi"
    assert env["A"] == "b"
    assert set(env) == {"A", protocol.COMMAND_VARIABLE, protocol.SCRIPT_VARIABLE}


def test_a_caller_cannot_take_the_names_that_the_wrapper_uses() -> None:
    how = {"directory": "/d", "token": TOKEN, "fingerprint": "abc", "boot": None, "timeout": 60}
    theirs = dict.fromkeys((protocol.COMMAND_VARIABLE, protocol.SCRIPT_VARIABLE), "theirs")
    _, env = protocol.wrapper("echo hi", theirs, **how)  # type: ignore[arg-type]
    assert "theirs" not in env.values()


def test_our_own_texts_do_not_carry_the_token_that_is_looked_for() -> None:
    for text in (
        protocol.void("/d", TOKEN, f"{RANDOM} 7", RANDOM),
        protocol.look("/d", TOKEN),
        protocol.end("/d", TOKEN),
        protocol.clean("/d", [TOKEN], age=1),
    ):
        assert TOKEN not in text


@pytest.mark.parametrize("token", ["", "x" * 32, "A" * 32, "a" * 31, "a" * 33, "a" * 32 + "\n", "../" + "a" * 29])
def test_a_token_is_32_hex_digits(token: str) -> None:
    with pytest.raises(ValueError, match="32 hex digits"):
        protocol.fence_path("/tmp", token)


@pytest.mark.parametrize("directory", ["", "tmp", "./x", "/a\0b"])
def test_the_directory_is_an_absolute_path(directory: str) -> None:
    with pytest.raises(ValueError, match="absolute path"):
        protocol.boot_path(directory)


def test_only_absolute_outputs_are_cleaned_away() -> None:
    with pytest.raises(ValueError, match="absolute"):
        protocol.clean("/d", [TOKEN], age=1, outputs=["-rf"])


def test_paths() -> None:
    assert protocol.boot_path("/tmp/.oncebox/") == "/tmp/.oncebox/boot"
    assert protocol.fence_path("/", TOKEN) == f"/{TOKEN}"


# -- readers


@pytest.mark.parametrize(
    ("data", "boot"),
    [
        (b"abc 25\n", Boot("abc 25", 25)),
        (b"abc 25", Boot("abc 25", 25)),
        (b" abc 25\t\n", Boot("abc 25", 25)),
        (b"abc\n", Boot("abc", 0)),
        (b"abc -1\n", Boot("abc -1", 0)),
        (b"", None),
        (b"\n", None),
        (b"a 1\nb 2\n", None),
        (b"\xff 1\n", None),
        (b"a\0 1\n", None),
        (b"x" * 201, None),
    ],
)
def test_a_mark_is_one_line(data: bytes, boot: Boot | None) -> None:
    assert protocol.parse_boot(data) == boot


@pytest.mark.parametrize(("before", "now", "replaced"), [(5, 5, False), (5, 6, True), (0, 6, False), (5, 0, False)])
def test_an_unknown_start_proves_nothing(before: int, now: int, replaced: bool) -> None:
    assert Boot("x", before).replaced_by(now) is replaced


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", Fence(kind="empty")),
        (b"f", Fence(kind="empty")),
        (b"fp=ab", Fence(kind="empty")),
        (b"fp=abc\n", Fence(kind="run", fingerprint="abc")),
        (b"fp=abc\ntimeout=6", Fence(kind="run", fingerprint="abc")),
        (RUN, Fence(kind="run", fingerprint="abc", timeout=60, pid=7, log="/tmp/x.output")),
        (
            RUN + b"\nexit=137\n",
            Fence(kind="run", fingerprint="abc", timeout=60, pid=7, log="/tmp/x.output", exit_code=137),
        ),
        (RUN + b"\nexit=13", Fence(kind="run", fingerprint="abc", timeout=60, pid=7, log="/tmp/x.output")),
        (RUN.replace(b"/tmp/x.output", b"pipe:[7]"), Fence(kind="run", fingerprint="abc", timeout=60, pid=7)),
        (b"fp=abc\npid=7\npid=8\n", Fence(kind="run", fingerprint="abc", pid=7)),
        (b"fp=abc\ntimeo\nexit=3\n", Fence(kind="run", fingerprint="abc", exit_code=3)),
        (b"\nexit=3\n", Fence(kind="damaged", exit_code=3)),
        (b"void abc 25\n", Fence(kind="void", boot="abc 25")),
        (b"void abc 25", Fence(kind="damaged")),
        (b"void abc 25\n\nexit=3\n", Fence(kind="damaged", exit_code=3)),
        (b"void\n", Fence(kind="damaged")),
        (b"abc\n7\n/tmp/x\n0\n", Fence(kind="damaged")),
        (b"\0\0\0\0\n", Fence(kind="damaged")),
    ],
)
def test_a_fence_is_read_as_far_as_it_is_whole(data: bytes, expected: Fence) -> None:
    assert protocol.parse_fence(data) == expected


@given(st.integers(0, len(RUN)))
def test_a_run_cut_anywhere_is_never_a_void_and_never_has_an_exit_code(length: int) -> None:
    cut = protocol.parse_fence((RUN + b"\nexit=137\n")[:length])
    assert cut.kind in ("empty", "run")
    assert cut.exit_code is None


@given(st.binary())
def test_whatever_stands_in_a_fence_is_read(data: bytes) -> None:
    protocol.parse_fence(data)
    protocol.parse_boot(data)
    assert protocol.parse_marker(data, TOKEN) is None


@pytest.mark.parametrize(
    ("line", "marker"),
    [
        ("fp=abc", Marker("run", "abc")),
        ("", Marker("run")),
        ("exit=3", Marker("run")),
        ("void abc 25", Marker("void")),
        ("boot", Marker("boot")),
        ("none", Marker("none")),
    ],
)
def test_a_marker_is_the_whole_output(line: str, marker: Marker) -> None:
    output = f"oncebox-fence {TOKEN} {line}\n".encode()
    assert protocol.parse_marker(output, TOKEN) == marker
    assert protocol.parse_marker(output, OTHER) is None
    for more in (b"x" + output, output + b"x", output + b"\n", output + output, output[:-1], b"\n" + output):
        assert protocol.parse_marker(more, TOKEN) is None


@pytest.mark.parametrize("foreign", ["\u00b2", "9" * 5000, "-1", "1_0"])
def test_what_is_no_number_is_no_process(foreign: str) -> None:
    assert protocol.parse_look(f"found=7 {foreign}\nboot=a 1\nstart=1\nfence:\n.").processes == (7,)


def test_what_the_commands_print_is_read_behind_noise_and_up_to_where_it_was_cut() -> None:
    noise = "motd: boot soon\nwarning\n"
    seen = protocol.parse_look(f"{noise}found=7 8 \nboot=a 1\nstart=1\nfence:\nfp=x\nboot=y 2\nfound=9\n.")
    assert seen == protocol.Look(Boot("a 1", 1), 1, (7, 8), Fence(kind="run", fingerprint="x"))
    assert seen.alive
    cut = protocol.parse_look("found=\nboot=a 1\nstart=1\nfence:\nfp=x\ntime.")
    assert cut.fence == Fence(kind="run", fingerprint="x")
    assert protocol.parse_look("found=\nboot=a 1\nstart=1\nfence:\n.").fence == Fence(kind="empty")
    assert protocol.parse_look("found=\nboot=a 1\nstart=1\nfence:\nfp=x\n").fence is None
    assert protocol.parse_look("") == protocol.Look(None, 0, None, None)
    assert protocol.parse_look("").alive is None
    assert protocol.parse_look("found=\n").alive is False
    assert protocol.parse_void(noise).outcome == "error"
    assert protocol.parse_void(f"{noise}boot=a 1\nstart=1\nvoid=voided\n").outcome == "voided"
    assert protocol.parse_void("boot=a 1\nstart=1\nvoid=run\n").outcome == "error"
    assert protocol.parse_void("boot=\nstart=3\nvoid=boot\n") == protocol.Voided("boot", None, 3)
    assert protocol.parse_end(noise) == "error"
    assert protocol.parse_end("end=gone\n") == "gone"
    assert protocol.parse_end("end=other\n") == "error"
    assert protocol.parse_ready(f"{noise}boot=a 1\nstart=1\n") == protocol.Ready(Boot("a 1", 1), 1)
    assert protocol.parse_ready("boot=\nstart=1\n") == protocol.Ready(None, 1)
    assert protocol.parse_clean(f"{noise}cleaned={TOKEN}\ncleaned=../x\n") == [TOKEN]


def test_a_void_made_under_another_mark_is_not_taken_for_a_run() -> None:
    assert protocol.parse_void("boot=a 1\nstart=1\nvoid=run\nfence:\nvoid b 2\n.").outcome == "error"
