"""Damaged packages: whatever is done to the bytes, reading ends quickly, in a result or in a `FormatError`."""

from __future__ import annotations

import struct
import time
from typing import Any

import numpy as np
import pytest
from ptn_format.errors import FormatError
from ptn_format.package import open_package
from ptn_format.validate import validate_program

ROUNDS = 1500


def read_everything(data: bytes) -> None:
    """Everything a reader does, except comparing checksums: those would hide what lies behind them."""
    opened = open_package(data)
    program = opened.program
    validate_program(program, {key: opened.constant_info(key) for key in opened.constant_keys})
    for key in opened.constant_keys:
        array = opened.constant(key)
        assert array.flags.aligned
        assert array.nbytes == opened.constant_info(key).nbytes
        array.tobytes()


def survives(data: bytes) -> bool:
    """Whether the package still reads; any other outcome than that or a `FormatError` fails the test."""
    start = time.process_time()
    found: FormatError | None = None
    try:
        read_everything(data)
    except FormatError as error:
        found = error
    assert time.process_time() - start < 2
    assert found is None or found.file == "<bytes>"
    assert found is None or 10 < len(str(found)) < 5000
    return found is None


@pytest.fixture(scope="module", params=["ours", "zipfile's"])
def sample(request: pytest.FixtureRequest, package: bytes, tools: Any) -> bytes:
    return package if request.param == "ours" else bytes(tools.zip_of(tools.members_of(package)))


def test_flipped_bits(sample: bytes) -> None:
    rng = np.random.default_rng(1)
    outcomes = set()
    for _ in range(ROUNDS):
        damaged = bytearray(sample)
        for position in rng.integers(0, len(sample), rng.integers(1, 4)):
            damaged[position] ^= 1 << rng.integers(8)
        outcomes.add(survives(bytes(damaged)))
    assert outcomes == {True, False}


def test_interesting_numbers(sample: bytes) -> None:
    """Sizes and offsets become 0, -1, powers of two and the like."""
    rng = np.random.default_rng(2)
    numbers = [0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
    for _ in range(ROUNDS):
        damaged = bytearray(sample)
        layout = rng.choice(["<B", "<H", "<I", "<Q"])
        size = struct.calcsize(layout)
        value = numbers[rng.integers(len(numbers))] % (1 << 8 * size)
        struct.pack_into(layout, damaged, int(rng.integers(0, len(sample) - size)), value)
        survives(bytes(damaged))


def test_cut_moved_and_repeated_pieces(sample: bytes) -> None:
    rng = np.random.default_rng(3)
    for _ in range(ROUNDS):
        a, b, c = sorted(int(n) for n in rng.integers(0, len(sample), 3))
        damaged = (
            sample[:a] + sample[b:],
            sample[:a] + sample[b:c] + sample[a:b] + sample[c:],
            sample[:b] + sample[a:b] + sample[b:],
            sample[:a] + bytes(b - a) + sample[b:],
            sample[:c],
            sample[a:],
        )[rng.integers(6)]
        survives(damaged)


def test_noise_behind_a_zip_signature() -> None:
    rng = np.random.default_rng(4)
    for _ in range(200):
        noise = rng.integers(0, 256, rng.integers(1, 300), np.uint8).tobytes()
        assert not survives(b"PK\x03\x04" + noise)
        assert not survives(b"PK\x03\x04" + noise + b"PK\x05\x06" + rng.integers(0, 256, 18, np.uint8).tobytes())
        assert not survives(noise + b"PK\x05\x06" + bytes(18))


def test_end_records_without_end() -> None:
    """A tail made of nothing but signatures is searched once."""
    assert not survives(b"PK\x03\x04" + b"PK\x05\x06" * 40_000)
    assert not survives(b"PK\x03\x04" + b"PK\x01\x02" * 400_000)
