import numpy as np
import ptn_runtime
import pytest
import torch
import vision
from ptn_export import to_native


@pytest.fixture(scope="module", params=["resnet18", "mobilenetv2"])
def network(request, tmp_path_factory):
    module = vision.make(request.param)
    path = tmp_path_factory.mktemp(request.param) / "model.ptn"
    to_native(vision.export_dynamic_batch(module)).save(path)
    return module, path


def test_logits_equal_eager_for_every_batch(engine, network):
    module, path = network
    generator = torch.Generator().manual_seed(1)
    with ptn_runtime.load(path, engine=engine) as model:
        for batch in (1, 3, 8):
            x = torch.randn(batch, 3, 64, 64, generator=generator)
            expected = module(x).numpy()
            found = model(x.numpy())
            scale = np.abs(expected).max()
            np.testing.assert_allclose(found, expected, atol=2e-5 * scale, rtol=1e-4)


def test_a_batch_out_of_bounds_names_the_input_and_the_range(engine, network):
    _, path = network
    with ptn_runtime.load(path, engine=engine) as model, pytest.raises(ValueError, match=r"'x'.*1\.\.8.*9"):
        model(np.zeros((9, 3, 64, 64), np.float32))
