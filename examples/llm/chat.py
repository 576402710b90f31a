"""Chat with the package that `smollm2.py` wrote: numpy, ptn-runtime and tokenizers, nothing else.

    python chat.py smollm2.ptn --temperature 0.6 --top-p 0.9
    python chat.py smollm2.ptn --prompt "What is gravity?" --temperature 0

In the chat, `/new NAME` starts another conversation with a cache of its own over the same weights, `/use NAME` goes
back to one, `/list` names them. Ctrl-C stops an answer; an empty line ends the program.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import ptn_runtime
import tokenizers

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
END = "<|im_end|>"


class ContextFull(Exception):  # noqa: N818  an everyday event, not an error of the program
    """A conversation has filled its cache."""


@dataclass
class Sampling:
    """How the next token is chosen; temperature 0 takes the likeliest."""

    temperature: float = 0.6
    top_k: int = 40
    top_p: float = 0.9
    repetition_penalty: float = 1.0

    def choose(self, logits: np.ndarray[Any, Any], seen: list[int], random: np.random.Generator) -> int:
        """One token for logits [vocabulary]."""
        logits = logits.astype(np.float64)
        if seen and self.repetition_penalty != 1.0:
            known = np.unique(seen)
            scaled = logits[known]
            logits[known] = np.where(scaled > 0, scaled / self.repetition_penalty, scaled * self.repetition_penalty)
        if self.temperature <= 0:
            return int(logits.argmax())
        order = np.argsort(-logits)[: self.top_k or None]
        odds = np.exp((logits[order] - logits[order[0]]) / self.temperature)
        odds /= odds.sum()
        kept = max(1, int(np.searchsorted(np.cumsum(odds), self.top_p)) + 1)
        return int(random.choice(order[:kept], p=odds[:kept] / odds[:kept].sum()))


class Conversation:
    """One chat: a session of the model with its own cache, and what was said in it."""

    def __init__(self, session: ptn_runtime.Session, tokenizer: tokenizers.Tokenizer, seed: int | None = None) -> None:
        self.session, self.tokenizer = session, tokenizer
        self.random = np.random.default_rng(seed)
        self.ids: list[int] = []  # all that is in the cache
        self.context = int(session.describe("prefill").inputs[0].shape[1].max)
        self.pending = f"<|im_start|>system\n{SYSTEM}{END}\n"

    def say(self, text: str, sampling: Sampling, max_tokens: int = 256) -> Iterator[str]:
        """Sends a message; yields the answer piece by piece."""
        prompt = f"{self.pending}<|im_start|>user\n{text}{END}\n<|im_start|>assistant\n"
        logits = self._feed(self.tokenizer.encode(prompt).ids)
        self.pending = f"{END}\n"
        answer: list[int] = []
        shown = ""
        while len(answer) < max_tokens:
            token = sampling.choose(logits, self.ids, self.random)
            if token == self.tokenizer.token_to_id(END):
                break
            answer.append(token)
            text = self.tokenizer.decode(answer)
            if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # else a character is not whole yet
                yield text[len(shown) :]
                shown = text
            logits = self._feed([token])

    def _feed(self, ids: list[int]) -> np.ndarray[Any, Any]:
        """Appends tokens to the cache; returns the logits behind the last."""
        if len(self.ids) + len(ids) > self.context:
            raise ContextFull(f"The conversation is longer than the {self.context} tokens that its cache holds.")
        positions = np.arange(len(self.ids), len(self.ids) + len(ids))
        self.ids += ids
        logits = self.session.run("decode" if len(ids) == 1 else "prefill", np.array([ids]), positions)
        return np.asarray(logits[0])


def load_tokenizer(model: ptn_runtime.Session) -> tokenizers.Tokenizer:
    """The tokenizer that the package holds."""
    return tokenizers.Tokenizer.from_str(model.run("tokenizer").tobytes().decode())


def answer(conversation: Conversation, text: str, sampling: Sampling, max_tokens: int) -> None:
    """Prints an answer while it is made."""
    try:
        for piece in conversation.say(text, sampling, max_tokens):
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        print(" [stopped]", end="")
    except ContextFull as full:
        print(f"\n[{full} Start another one: /new NAME]", end="")
    print()


def command(line: str, current: str, conversations: dict[str, Conversation], start: Callable[[], Conversation]) -> str:
    """Follows a line that starts with a slash; returns the name of the conversation that goes on."""
    verb, _, name = line.partition(" ")
    name = name.strip() or (f"chat {len(conversations) + 1}" if verb == "/new" else "")
    if verb == "/new" and name not in conversations:
        conversations[name] = start()
        return name
    if verb == "/use" and name in conversations:
        return name
    if verb == "/new":
        print(f"[there is a conversation '{name}' already; /use {name} goes back to it]")
    elif verb == "/use":
        print(f"[there is no conversation '{name}'; there are: {', '.join(conversations)}]")
    elif verb == "/list":
        for other, conversation in conversations.items():
            print(f"[{other}: {len(conversation.ids)} of {conversation.context} tokens]")
    else:
        print(f"[there is no command {verb}; there are /new NAME, /use NAME, /list, and an empty line to end]")
    return current


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="?", default="smollm2.ptn")
    parser.add_argument("--engine", help="the best one where it is left out")
    parser.add_argument("--threads", type=int, help="of the ggml engine; fewer are faster on a busy machine")
    parser.add_argument("--prompt", help="answer this and end")
    parser.add_argument("--temperature", type=float, default=Sampling.temperature, help="0 takes the likeliest token")
    parser.add_argument("--top-k", type=int, default=Sampling.top_k, help="0 takes all")
    parser.add_argument("--top-p", type=float, default=Sampling.top_p, help="1 takes all")
    parser.add_argument("--repetition-penalty", type=float, default=Sampling.repetition_penalty, help="1 is none")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.repetition_penalty)

    engine_options = {} if options.threads is None else {"threads": options.threads}
    with ptn_runtime.load(options.package, engine=options.engine, **engine_options) as model:
        tokenizer = load_tokenizer(model)

        def start() -> Conversation:
            return Conversation(model.session(), tokenizer, options.seed)

        name = "first"
        conversations = {name: Conversation(model, tokenizer, options.seed)}
        if options.prompt:
            answer(conversations[name], options.prompt, sampling, options.max_tokens)
            return
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            while line := input(f"{name}> ").strip():
                if line.startswith("/"):
                    name = command(line, name, conversations, start)
                else:
                    answer(conversations[name], line, sampling, options.max_tokens)


if __name__ == "__main__":
    main()
