"""torch tensors as inputs. The runtime itself never imports torch."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from ptn_format.dtypes import ScalarType
from ptn_format.signature import Signature
from ptn_runtime.arrays import Binder
from ptn_runtime.errors import InputError


def convert(fakes: Any, value: Any, dtype: ScalarType, *sizes: int) -> Any:
    spec = fakes.tensor("x", dtype, *sizes)
    (result,), _ = Binder("forward", [spec], Signature.flat(["x"], 1)).bind([value], {})
    return result


@pytest.mark.parametrize(
    ("torch_dtype", "dtype"),
    [
        (torch.float32, ScalarType.FLOAT),
        (torch.float64, ScalarType.DOUBLE),
        (torch.float16, ScalarType.HALF),
        (torch.bfloat16, ScalarType.BFLOAT16),
        (torch.int64, ScalarType.LONG),
        (torch.uint8, ScalarType.BYTE),
        (torch.bool, ScalarType.BOOL),
    ],
)
def test_tensors(fakes: Any, torch_dtype: Any, dtype: ScalarType) -> None:
    value = torch.arange(6).reshape(2, 3).to(torch_dtype)
    np.testing.assert_array_equal(convert(fakes, value, dtype, 2, 3), value.to(torch.float64).numpy())
    np.testing.assert_array_equal(convert(fakes, value.T, dtype, 3, 2), value.T.to(torch.float64).numpy())
    np.testing.assert_array_equal(convert(fakes, value[0, 1], dtype), value[0, 1].to(torch.float64).numpy())


def test_tensors_that_ask_for_gradients(fakes: Any) -> None:
    for torch_dtype, dtype in ((torch.float32, ScalarType.FLOAT), (torch.bfloat16, ScalarType.BFLOAT16)):
        value = torch.ones(2, dtype=torch_dtype, requires_grad=True)
        np.testing.assert_array_equal(convert(fakes, value, dtype, 2).astype(np.float32), [1, 1])
        parameter = torch.nn.Parameter(value.detach())
        np.testing.assert_array_equal(convert(fakes, parameter, dtype, 2).astype(np.float32), [1, 1])


def test_conjugate_and_negative_views(fakes: Any) -> None:
    value = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert value.is_neg()
    np.testing.assert_array_equal(convert(fakes, value, ScalarType.FLOAT, 2), [-2, 4])


def test_refusals(fakes: Any) -> None:
    with pytest.raises(InputError, match=r"input 'x' takes bfloat16\[2\], got float32"):
        convert(fakes, torch.ones(2), ScalarType.BFLOAT16, 2)
    with pytest.raises(InputError, match=r"input 'x' takes float32\[2\], got bfloat16"):
        convert(fakes, torch.ones(2, dtype=torch.bfloat16), ScalarType.FLOAT, 2)
    with pytest.raises(
        InputError, match=r"input 'x' takes float32\[2\], got a Tensor, which cannot be read as an array"
    ):
        convert(fakes, torch.ones(2, device="meta"), ScalarType.FLOAT, 2)
    with pytest.raises(InputError, match="cannot be read as an array"):
        convert(fakes, torch.ones(2).to_sparse(), ScalarType.FLOAT, 2)


def test_bfloat16_keeps_every_bit(fakes: Any) -> None:
    bits = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16)
    found = convert(fakes, bits.view(torch.bfloat16), ScalarType.BFLOAT16, 65536)
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found.view(np.int16), bits.numpy())
