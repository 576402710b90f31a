import copy

import decoder as definition
import numpy as np
import ptn_runtime
import pytest
import torch
from ptn_export import to_native

PROMPTS = [[3, 1, 4, 1, 5], [7], [250, 9, 100, 31, 77, 8, 8, 2]]
COUNT = 64


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    path = tmp_path_factory.mktemp("decoder") / "decoder.ptn"
    to_native(definition.export_methods(definition.make_decoder())).save(path)
    return path


def eager_tokens(prompt):
    return definition.generate(definition.make_decoder(), prompt, COUNT)


def step_of(session):
    def step(ids, positions):
        method = "decode" if ids.shape[1] == 1 and positions[0] > 0 else "prefill"
        return torch.from_numpy(session.run(method, ids.numpy(), positions.numpy()))

    return step


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_64_greedy_tokens_equal_eager(engine, package, prompt):
    with ptn_runtime.load(package, engine=engine) as model:
        assert set(model.methods) == {"prefill", "decode"}
        assert definition.generate(step_of(model), prompt, COUNT) == eager_tokens(prompt)


def test_logits_equal_eager(engine, package):
    eager = definition.make_decoder()
    ids, positions = torch.tensor([[5, 6, 7, 8]]), torch.arange(4)
    with ptn_runtime.load(package, engine=engine) as model:
        found = model.run("prefill", ids=ids.numpy(), positions=positions.numpy())
        np.testing.assert_allclose(found, eager(ids, positions).numpy(), atol=2e-5, rtol=1e-4)
        ids, positions = torch.tensor([[9]]), torch.tensor([4])
        found = model.run("decode", ids.numpy(), positions.numpy())
        np.testing.assert_allclose(found, eager(ids, positions).numpy(), atol=2e-5, rtol=1e-4)


def test_sessions_are_independent_streams(engine, package):
    with ptn_runtime.load(package, engine=engine) as model:
        streams = [(model.session(), prompt) for prompt in PROMPTS]
        steps = [step_of(session) for session, _ in streams]
        logits = [
            step(torch.tensor([prompt]), torch.arange(len(prompt)))
            for step, (_, prompt) in zip(steps, streams, strict=True)
        ]
        tokens = [[int(row[0].argmax())] for row in logits]
        for i in range(COUNT - 1):
            for step, (_, prompt), found in zip(steps, streams, tokens, strict=True):
                row = step(torch.tensor([found[-1:]]), torch.tensor([len(prompt) + i]))
                found.append(int(row[0].argmax()))
        assert tokens == [eager_tokens(prompt) for prompt in PROMPTS]
        for session, _ in streams:
            session.close()


def test_reset_starts_over_and_state_can_be_read_and_written(engine, package):
    with ptn_runtime.load(package, engine=engine) as model:
        first = definition.generate(step_of(model), PROMPTS[0], 12)
        key = next(name for name in model.state if name.endswith("blocks.0.keys"))
        cache = model.state[key]
        assert np.abs(cache).sum() > 0
        model.state.reset()
        assert np.abs(model.state[key]).sum() == 0
        assert definition.generate(step_of(model), PROMPTS[0], 12) == first
        model.state[key] = np.ones_like(cache)
        np.testing.assert_array_equal(model.state[key], 1)


def test_exporting_leaves_the_module_alone():
    module = definition.make_decoder()
    before = copy.deepcopy(module.state_dict())
    to_native(definition.export_methods(module))
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name
