"""What calls accept, what they refuse, and in which words."""

import array
import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ptn_format.dtypes import ScalarType
from ptn_format.errors import SignatureError
from ptn_format.signature import Constant, Container, Leaf, Parameter, Signature
from ptn_runtime.arrays import Binder
from ptn_runtime.errors import InputError


@pytest.fixture
def convert(fakes: Any) -> Any:
    def run(value: Any, dtype: ScalarType, *sizes: Any) -> Any:
        spec = fakes.tensor("x", dtype, *sizes)
        (result,), _ = Binder("forward", [spec], Signature.flat(["x"], 1)).bind([value], {})
        assert result.dtype == dtype.numpy
        assert result.flags.c_contiguous
        assert result.flags.aligned
        return result

    return run


class OnlyArrayProtocol:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.value, dtype)


class OnlyDlpack:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.value.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.value.__dlpack_device__()


X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "value",
    [
        X,
        np.asfortranarray(X),
        np.repeat(X, 2, axis=1)[:, ::2],
        X[::-1][::-1],
        X.astype(">f4"),
        X.astype("<f4"),
        memoryview(X),
        memoryview(X.tobytes()).cast("f", (2, 3)),
        ((ctypes.c_float * 3) * 2)((0, 1, 2), (3, 4, 5)),
        OnlyArrayProtocol(X),
        OnlyDlpack(X),
        np.frombuffer(b"\0" + X.tobytes(), np.float32, offset=1).reshape(2, 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_array_likes(convert: Any, value: Any) -> None:
    np.testing.assert_array_equal(convert(value, ScalarType.FLOAT, 2, 3), X)


def test_other_buffers(convert: Any) -> None:
    np.testing.assert_array_equal(convert(b"\1\2", ScalarType.BYTE, 2), [1, 2])
    np.testing.assert_array_equal(convert(bytearray(b"\1\2"), ScalarType.BYTE, 2), [1, 2])
    np.testing.assert_array_equal(convert(array.array("q", [3, 4]), ScalarType.LONG, 2), [3, 4])
    strides = np.broadcast_to(np.float32(3), (2, 3))
    np.testing.assert_array_equal(convert(strides, ScalarType.FLOAT, 2, 3), np.full((2, 3), 3))
    assert convert(np.zeros((0, 3), np.float32), ScalarType.FLOAT, (0, 4), 3).shape == (0, 3)


def test_an_exact_array_is_not_copied(convert: Any) -> None:
    assert convert(X, ScalarType.FLOAT, 2, 3) is X


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, ScalarType.BOOL),
        (3, ScalarType.LONG),
        (255, ScalarType.BYTE),
        (2, ScalarType.FLOAT),
        (0.5, ScalarType.FLOAT),
        (0.5, ScalarType.BFLOAT16),
        (float("inf"), ScalarType.HALF),
        (np.float32(0.5), ScalarType.FLOAT),
        (np.int32(3), ScalarType.LONG),
        (np.bool_(True), ScalarType.BOOL),
        (np.array(0.5, np.float32), ScalarType.FLOAT),
    ],
)
def test_scalars(convert: Any, value: Any, dtype: ScalarType) -> None:
    result = convert(value, dtype)
    assert result.shape == ()
    assert result[()] == value


@pytest.mark.parametrize(
    ("value", "dtype", "words"),
    [
        (True, ScalarType.LONG, "input 'x' takes int64[], got the Python bool True."),
        (1, ScalarType.BOOL, "input 'x' takes bool[], got the Python int 1."),
        (1.0, ScalarType.LONG, "input 'x' takes int64[], got the Python float 1.0."),
        (256, ScalarType.BYTE, "input 'x' takes uint8[], and the Python int 256 is out of its range."),
        (1e6, ScalarType.HALF, "input 'x' takes float16[], and the Python float 1000000.0 is out of its range."),
    ],
)
def test_scalars_that_do_not_fit(convert: Any, value: Any, dtype: ScalarType, words: str) -> None:
    with pytest.raises(InputError) as caught:
        convert(value, dtype)
    assert str(caught.value) == words


INTEGERS = [np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64]


@pytest.mark.parametrize("given", INTEGERS)
@pytest.mark.parametrize("wanted", INTEGERS)
def test_integers_widen_where_every_value_fits(convert: Any, given: Any, wanted: Any) -> None:
    low, high = np.iinfo(given), np.iinfo(wanted)
    fits = low.min >= high.min and low.max <= high.max
    value = np.array([low.min, low.max], given)
    scalar = ScalarType.from_numpy(wanted)
    if fits:
        assert [int(item) for item in convert(value, scalar, 2)] == [low.min, low.max]
    else:
        with pytest.raises(InputError, match="not converted"):
            convert(value, scalar, 2)


@pytest.mark.parametrize(
    ("value", "dtype", "words"),
    [
        (
            np.zeros(2),
            ScalarType.FLOAT,
            "input 'x' takes float32[2], got float64. It is not converted, since values could change; "
            "if that is meant, pass value.astype(numpy.float32).",
        ),
        (
            np.zeros(2, np.float32),
            ScalarType.BFLOAT16,
            "input 'x' takes bfloat16[2], got float32. It is not converted, since values could change; "
            "if that is meant, pass value.astype(ml_dtypes.bfloat16).",
        ),
        (
            np.zeros(2, np.int64),
            ScalarType.BOOL,
            "input 'x' takes bool[2], got int64. It is not converted, since values could change; "
            "if that is meant, pass value.astype(bool).",
        ),
        (np.zeros(2, bool), ScalarType.LONG, "pass value.astype(numpy.int64)"),
        (np.zeros(2, np.int64), ScalarType.FLOAT, "pass value.astype(numpy.float32)"),
        (np.zeros(2, ml_dtypes.bfloat16), ScalarType.FLOAT, "got bfloat16. It is not converted"),
        (np.zeros(2, np.complex64), ScalarType.FLOAT, "input 'x' takes float32[2], got complex64."),
        (np.array(["a", "b"]), ScalarType.FLOAT, "got str"),
        (np.array([None, 1], object), ScalarType.FLOAT, "got object."),
        (np.zeros(2, "f4,f4"), ScalarType.FLOAT, "input 'x' takes float32[2], got "),
        (np.zeros(2, "M8[s]"), ScalarType.LONG, "got datetime64[s]."),
        ([1.0, 2.0], ScalarType.FLOAT, "got a list; pass an array: numpy.array(value, dtype=...)."),
        (None, ScalarType.FLOAT, "input 'x' takes float32[2], got None; pass a numpy array."),
        ("ab", ScalarType.BYTE, "input 'x' takes uint8[2], got a str; pass a numpy array."),
        ({}, ScalarType.FLOAT, "got a dict; pass a numpy array."),
        (object(), ScalarType.FLOAT, "got a object, which cannot be read as an array: TypeError:"),
        (1.0, ScalarType.FLOAT, "got the Python float 1.0; only 0-d tensors take Python numbers: pass an array."),
        (1j, ScalarType.FLOAT, "got a complex, which cannot be read as an array"),
        (np.ma.array([1, 2], dtype=np.float32, mask=[True, False]), ScalarType.FLOAT, "mask would be lost"),
    ],
)
def test_refusals(convert: Any, value: Any, dtype: ScalarType, words: str) -> None:
    with pytest.raises(InputError) as caught:
        convert(value, dtype, 2)
    assert words in str(caught.value)
    assert str(caught.value).startswith("input 'x' ")


def test_a_failing_array_protocol_is_an_input_error(convert: Any) -> None:
    class OnAnotherDevice:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise TypeError("copy it to the CPU first")

    with pytest.raises(InputError, match="cannot be read as an array: TypeError: copy it to the CPU first"):
        convert(OnAnotherDevice(), ScalarType.FLOAT, 2)


def test_bfloat16(convert: Any) -> None:
    value = np.array([1.5, 2], ml_dtypes.bfloat16)
    assert convert(value, ScalarType.BFLOAT16, 2) is value


@pytest.fixture
def nested(fakes: Any) -> Binder:
    """`f(ids, batch, flag=True, *, pair, opt=None)` with `batch` a dict of a tensor and a list, `pair` a namedtuple."""
    signature = Signature(
        (
            Parameter("ids", Leaf(0)),
            Parameter(
                "batch",
                Container(
                    "dict",
                    (Leaf(1), Container("list", (Leaf(2), Leaf(3))), Constant("mode")),
                    ("mask", "layers", "kind"),
                ),
            ),
            Parameter("flag", Constant(True)),
            Parameter("pair", Container("namedtuple", (Leaf(4), Leaf(5)), ("a", "b"), "Pair"), keyword_only=True),
            Parameter("opt", Constant(None), keyword_only=True),
        ),
        Leaf(0),
    )
    names = ["ids", "batch.mask", "batch.layers[0]", "batch.layers[1]", "pair.a", "pair.b"]
    return Binder("forward", [fakes.tensor(name, ScalarType.LONG, 1) for name in names], signature)


def n(value: int) -> Any:
    return np.array([value])


BATCH = {"layers": [n(2), n(3)], "kind": "mode", "mask": n(1)}


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((n(0), BATCH), {"pair": (n(4), n(5))}),
        ((n(0), BATCH, True), {"pair": [n(4), n(5)], "opt": None}),
        ((), {"ids": n(0), "batch": BATCH, "pair": {"b": n(5), "a": n(4)}, "flag": np.bool_(True)}),
        ((n(0),), {"batch": {**BATCH, "layers": (n(2), n(3))}, "pair": (n(4), n(5))}),
        (
            (n(0),),
            {
                "batch.mask": n(1),
                "batch.layers[0]": n(2),
                "batch.layers[1]": n(3),
                "pair.a": n(4),
                "pair.b": n(5),
            },
        ),
    ],
)
def test_binding(nested: Binder, args: Any, kwargs: Any) -> None:
    arrays, written = nested.bind(args, kwargs)
    assert [int(item[0]) for item in arrays] == [0, 1, 2, 3, 4, 5]
    assert written == []


GOOD = {"batch": BATCH, "pair": (n(4), n(5))}


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), GOOD, "method 'forward' got no value for its input 'ids' (int64[1])."),
        ((n(0),), {}, "got no value for its inputs 'batch.mask' (int64[1]), 'batch.layers[0]' (int64[1]), "),
        (
            (n(0), BATCH, True, None),
            {},
            "method 'forward' takes 3 positional arguments (ids, batch, flag), got 4; by keyword only: pair, opt.",
        ),
        ((n(0),), {**GOOD, "ids": n(0)}, "method 'forward' got 'ids' twice: by position and by name."),
        (
            (n(0),),
            {"batches": BATCH},
            "method 'forward' has no input 'batches'. Its inputs: ids, batch, flag, pair, opt, batch.mask, "
            "batch.layers[0], batch.layers[1], pair.a, pair.b. Did you mean 'batch'?",
        ),
        (
            (n(0), {**BATCH, "extra": 1}),
            {},
            "argument 'batch' has the unknown key 'extra'. Its keys: mask, layers, kind.",
        ),
        ((n(0), {"layers": []}), {}, "argument 'batch' has no key 'mask', 'kind'. Its keys: mask, layers, kind."),
        ((n(0), n(1)), {}, "argument 'batch' takes a dict with keys mask, layers, kind, got a ndarray."),
        (
            (n(0), {**BATCH, "layers": [n(1)]}),
            {},
            "argument 'batch.layers' is a list of 2 items, got 1.",
        ),
        ((n(0), {**BATCH, "layers": n(1)}), {}, "argument 'batch.layers' takes a list of 2 items, got a ndarray."),
        ((n(0),), {**GOOD, "pair": n(4)}, "argument 'pair' takes a Pair with keys a, b, got a ndarray."),
        (
            (n(0), BATCH, False),
            {},
            "argument 'flag' was fixed to True when the model was exported, got False. "
            "Leave it out, or export the model with the other value.",
        ),
        ((n(0), BATCH, 1), {}, "argument 'flag' was fixed to True when the model was exported, got 1."),
        ((n(0), {**BATCH, "kind": "x"}), {}, "argument 'batch.kind' was fixed to 'mode'"),
        (
            (n(0),),
            {**GOOD, "opt": n(1)},
            "argument 'opt' was fixed to None when the model was exported, got a ndarray.",
        ),
        ((n(0),), {**GOOD, "batch.mask": n(7)}, "method 'forward' got 'batch.mask' twice."),
        (
            (n(0), {**BATCH, "layers": [n(1), np.zeros(1, np.float32)]}),
            GOOD and {"pair": (n(4), n(5))},
            "input 'batch.layers[1]' takes int64[1], got float32.",
        ),
    ],
)
def test_binding_errors(nested: Binder, args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        nested.bind(args, kwargs)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("fixed", "given", "same"),
    [
        (2, 2, True),
        (2, 2.0, True),
        (2.5, np.float32(2.5), True),
        (1, True, False),
        (True, np.bool_(True), True),
        (float("nan"), float("nan"), True),
        ("a", "a", True),
        ("a", "b", False),
        (None, 0, False),
        (2, "2", False),
    ],
)
def test_constants(fixed: Any, given: Any, same: bool) -> None:
    binder = Binder("forward", [], Signature((Parameter("c", Constant(fixed)),), Constant(None)))
    assert binder.bind([], {}) == ([], [])
    if same:
        binder.bind([given], {})
    else:
        with pytest.raises(InputError, match="argument 'c' was fixed to"):
            binder.bind([given], {})


def test_objects_are_read_by_key_or_attribute(fakes: Any) -> None:
    tree = Container("object", (Leaf(0), Leaf(1)), ("a", "b"), "Output")
    binder = Binder(
        "forward",
        [fakes.tensor("o.a", ScalarType.LONG, 1), fakes.tensor("o.b", ScalarType.LONG, 1)],
        Signature((Parameter("o", tree),), Leaf(0)),
    )

    class Output:
        a = n(1)
        b = n(2)

    for value in (Output(), {"a": n(1), "b": n(2)}):
        arrays, _ = binder.bind([value], {})
        assert [int(item[0]) for item in arrays] == [1, 2]
    with pytest.raises(InputError, match="argument 'o' takes a Output with keys a, b, got"):
        binder.bind([3], {})


def test_signature_that_does_not_fit_the_graph(fakes: Any) -> None:
    with pytest.raises(SignatureError, match="damaged or was edited"):
        Binder("forward", [fakes.tensor("x", ScalarType.LONG, 1)], Signature((Parameter("x", Leaf(1)),), Leaf(0)))


def test_flat_signatures_take_the_fast_lane(fakes: Any) -> None:
    x, y = fakes.tensor("x", ScalarType.LONG, 1), fakes.tensor("y", ScalarType.LONG, 1)
    mutated = fakes.tensor("x", ScalarType.LONG, 1, mutated=True)
    assert Binder("f", [x, y], Signature.flat(["x", "y"], 1)).flat
    assert not Binder("f", [mutated], Signature.flat(["x"], 1)).flat
    assert not Binder("f", [x, y], Signature((Parameter("x", Leaf(1)), Parameter("y", Leaf(0))), Leaf(0))).flat
    assert not Binder("f", [x], Signature((Parameter("x", Leaf(0), keyword_only=True),), Leaf(0))).flat
