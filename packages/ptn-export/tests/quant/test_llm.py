"""examples/llm: SmolLM2-135M-Instruct from its GGUF file, against the decoded model in eager PyTorch."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ptn_runtime
import pytest
import torch
from ptn_export.gguf import GGUFTensor, read_gguf
from ptn_format.graph import PackedQuant
from ptn_format.package import open_package

TOKENS = 64
TOLERANCE = 1e-4
"""How far logits of an engine may be from eager PyTorch's, as a part of their spread: rounding of 30 layers."""
QUESTION = "Tell me a short story about a lighthouse keeper."


def _example(name: str) -> Any:
    path = Path(__file__).parents[4] / "examples" / "llm" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_llm_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


smollm2, chat = _example("smollm2"), _example("chat")


@dataclass
class Expected:
    """What eager PyTorch gives: the prompt, the likeliest tokens behind it, and the logits of each step."""

    prompt: list[int]
    tokens: list[int]
    logits: np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = read_gguf(smollm2.model_path())
    path: Path = tmp_path_factory.mktemp("llm") / "smollm2.ptn"
    smollm2.export(smollm2.load_model(file), smollm2.load_tokenizer(file.metadata)).save(path)
    return path


@pytest.fixture(scope="module")
def expected() -> Expected:
    file = read_gguf(smollm2.model_path())
    plain = {name: t.dequantize() if isinstance(t, GGUFTensor) else t for name, t in file.tensors.items()}
    model = smollm2.load_model(smollm2.GGUFFile(file.metadata, plain))
    text = f"<|im_start|>system\n{chat.SYSTEM}{chat.END}\n<|im_start|>user\n{QUESTION}{chat.END}\n"
    prompt = smollm2.load_tokenizer(file.metadata).encode(f"{text}<|im_start|>assistant\n").ids
    tokens: list[int] = []
    steps = []
    with torch.no_grad():
        logits = model(torch.tensor([prompt]), torch.arange(len(prompt)))
        for i in range(TOKENS):
            steps.append(logits[0].numpy())
            tokens.append(int(steps[-1].argmax()))
            logits = model(torch.tensor([tokens[-1:]]), torch.tensor([len(prompt) + i]))
    return Expected(prompt, tokens, np.stack(steps))


@pytest.mark.slow
def test_package_holds_the_blocks(package: Path) -> None:
    assert package.stat().st_size < 1.01 * smollm2.model_path().stat().st_size
    with open_package(package) as opened:
        assert opened.method_names == ("prefill", "decode", "tokenizer")
        quants = [ref.meta.quant for ref in opened.method("decode").constants]
        codecs = [quant.codec for quant in quants if isinstance(quant, PackedQuant)]
        assert sorted(set(codecs)) == ["gguf:q4_1", "gguf:q8_0"]
        assert len(codecs) == 211
        assert len(opened.method("decode").mutable_buffers) == 60


def greedy(model: ptn_runtime.Session, prompt: list[int]) -> tuple[list[int], list[np.ndarray[Any, Any]]]:
    """The likeliest tokens behind a prompt, and the logits that each was taken from."""
    logits = [model.run("prefill", np.array([prompt]), np.arange(len(prompt)))[0]]
    tokens = [int(logits[0].argmax())]
    while len(tokens) < TOKENS:
        position = len(prompt) + len(tokens) - 1
        logits.append(model.run("decode", np.array([tokens[-1:]]), np.array([position]))[0])
        tokens.append(int(logits[-1].argmax()))
    return tokens, logits


@pytest.mark.slow
def test_greedy_text_on_the_reference_is_that_of_eager_pytorch(package: Path, expected: Expected) -> None:
    with ptn_runtime.load(package, engine="reference", decode_once=True) as model:
        tokens, _ = greedy(model, expected.prompt)
        assert tokens == expected.tokens
        tokenizer = chat.load_tokenizer(model)
        for text in ("Hello, wörld! 1234 apples", "  two  spaces\n", "<|im_start|>user"):
            assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
        assert len(tokenizer.encode("1234").ids) == 4
        assert len(tokenizer.encode("<|im_end|>").ids) == 1


@pytest.mark.slow
def test_greedy_text_on_ggml_is_that_of_eager_pytorch_up_to_ties(package: Path, expected: Expected) -> None:
    """Every step's logits are near, so another token can only be one that is as likely within that distance."""
    with ptn_runtime.load(package, engine="ggml", threads=1) as model:
        tokens, logits = greedy(model, expected.prompt)
    for step, (token, ours, theirs) in enumerate(zip(tokens, logits, expected.logits, strict=True)):
        allowed = TOLERANCE * (theirs.max() - theirs.min())
        assert np.abs(ours - theirs).max() <= allowed, step
        if token != expected.tokens[step]:
            assert theirs[expected.tokens[step]] - theirs[token] <= 2 * allowed, step
            break  # what follows answers another text


@pytest.mark.slow
def test_ggml_streams_the_same_text_in_several_sessions(package: Path, expected: Expected) -> None:
    """What is said in a second session does not reach the first."""
    length = len(expected.prompt)
    with ptn_runtime.load(package, engine="ggml", threads=1) as model:
        model.run("prefill", np.array([expected.prompt]), np.arange(length))
        tokenizer = chat.load_tokenizer(model)
        second = chat.Conversation(model.session(), tokenizer)
        pieces = list(second.say(QUESTION, chat.Sampling(temperature=0), max_tokens=4))
        assert "".join(pieces) == tokenizer.decode(expected.tokens[:4])
        assert len(pieces) > 1
        logits = model.run("decode", np.array([expected.tokens[:1]]), np.array([length]))[0]
        assert int(logits.argmax()) == expected.tokens[1]


def test_sampling() -> None:
    random = np.random.default_rng(0)
    logits = np.array([0.0, 3.0, 2.0, 2.9], np.float32)
    assert chat.Sampling(temperature=0).choose(logits, [], random) == 1
    assert chat.Sampling(temperature=0, repetition_penalty=2.0).choose(logits, [1], random) == 3
    assert chat.Sampling(temperature=0, repetition_penalty=4.0).choose(-logits - 1, [0], random) == 2
    picks = {
        name: {sampling.choose(logits, [], random) for _ in range(200)}
        for name, sampling in {
            "top-k": chat.Sampling(temperature=5.0, top_k=2, top_p=1.0),
            "top-p": chat.Sampling(temperature=1.0, top_k=0, top_p=0.4),
            "all": chat.Sampling(temperature=5.0, top_k=0, top_p=1.0),
        }.items()
    }
    assert picks == {"top-k": {1, 3}, "top-p": {1}, "all": {0, 1, 2, 3}}


def test_commands_of_the_chat(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass
    class Stub:
        ids: list[int]
        context: int = 8

    conversations: dict[str, Any] = {"first": Stub([1, 2])}
    lines = ["/new other", "/new", "/new first", "/use first", "/use none", "/list", "/help"]
    current, path = "first", []
    for line in lines:
        current = chat.command(line, current, conversations, lambda: Stub([]))
        path.append(current)
    assert path == ["other", "chat 3", "chat 3", "first", "first", "first", "first"]
    assert list(conversations) == ["first", "other", "chat 3"]
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "[there is a conversation 'first' already; /use first goes back to it]"
    assert printed[1] == "[there is no conversation 'none'; there are: first, other, chat 3]"
    assert printed[2:5] == ["[first: 2 of 8 tokens]", "[other: 0 of 8 tokens]", "[chat 3: 0 of 8 tokens]"]
    assert printed[5].startswith("[there is no command /help; there are /new NAME")


def test_a_full_conversation_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    class Full(chat.Conversation):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            self.ids, self.context, self.pending = list(range(8)), 8, ""
            self.tokenizer = smollm2.tokenizers.Tokenizer(smollm2.models.BPE({"a": 0}, []))

    chat.answer(Full(), "a", chat.Sampling(), 4)
    assert "longer than the 8 tokens that its cache holds. Start another one: /new NAME]" in capsys.readouterr().out
