"""A decoder of `transformers` with its own static cache: two methods over shared weights and one state."""

import warnings

import numpy as np
import ptn_runtime
import pytest
import torch
from ptn_export import to_native

PROMPT = [5, 6, 7, 8, 9]
COUNT = 12


@pytest.fixture(scope="module")
def decoder():
    from zoo import entry, language

    torch.manual_seed(0)
    model = language.decoder("Llama", use_cache=True)
    model.generation_config.eos_token_id = None  # never stops early
    return entry.randomise(model.eval().requires_grad_(False))


@pytest.fixture(scope="module")
def native(decoder):
    from zoo import cache

    scope = {"torch": torch, "model": decoder}
    with warnings.catch_warnings(action="ignore"):  # of the library, about itself
        exec(cache.CODE, scope)
    return to_native(scope["methods"])


def generate(model, prompt):
    tokens = list(prompt)
    logits = model.run("prefill", input_ids=np.array([prompt]), cache_position=np.arange(len(prompt)))
    for position in range(len(prompt), len(prompt) + COUNT):
        tokens.append(int(logits[0, -1].argmax()))
        logits = model.run("decode", input_ids=np.array([tokens[-1:]]), cache_position=np.array([position]))
    return tokens


def test_weights_and_cache_are_stored_once(native):
    prefill, decode = native.report.methods
    assert prefill.state == decode.state
    assert sorted(name for name in prefill.state if name.startswith("key_cache")) == ["key_cache_0", "key_cache_1"]
    assert not any("cache" in key or "lifted" in key for key in native.constants)


def test_greedy_tokens_equal_those_of_generate(native, decoder, engine, tmp_path):
    native.save(tmp_path / "decoder.ptn")
    with ptn_runtime.load(tmp_path / "decoder.ptn", engine=engine) as model:
        for prompt in (PROMPT, PROMPT[:1], [9, 8, 7] * 4):  # the cache still holds what was there before
            with warnings.catch_warnings(action="ignore"):
                ids = torch.tensor([prompt])
                expected = decoder.generate(ids, max_new_tokens=COUNT, do_sample=False, cache_implementation=None)
            assert generate(model, prompt) == expected[0].tolist()
