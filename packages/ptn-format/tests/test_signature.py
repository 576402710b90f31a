"""The calling convention: what is written is read back, and damaged text is one kind of error that says what it is."""

from __future__ import annotations

import json
import random
from collections import namedtuple

import pytest
from ptn_format.errors import SignatureError
from ptn_format.signature import Constant, Container, Leaf, Parameter, Signature, build, leaves, named_leaves

EVERYTHING = Signature(
    (
        Parameter("ids", Leaf(0)),
        Parameter("batch", Container("dict", (Leaf(1), Container("tuple", (Leaf(2), Leaf(1)))), ("a b", 7))),
        Parameter("größe", Container("namedtuple", (Leaf(3), Constant(2.5)), ("left", "right"), "Pair")),
        Parameter("flag", Constant(value=False), keyword_only=True),
    ),
    Container("object", (Leaf(0), Container("list", (Constant(None), Constant("x"), Leaf(1)))), ("y", "z"), "Output"),
)


@pytest.mark.parametrize("signature", [EVERYTHING, Signature.flat(["x", "y"], 1), Signature.flat([], 3)])
def test_round_trip(signature: Signature) -> None:
    assert Signature.from_json(signature.to_json()) == signature


def test_text_word_for_word() -> None:
    """Files hold this text, so it stays."""
    assert EVERYTHING.to_json() == (
        '{"parameters":[["ids",0],["batch",{"dict":[1,{"tuple":[2,1]}],"keys":["a b",7]}],'
        '["größe",{"namedtuple":[3,{"constant":2.5}],"keys":["left","right"],"type":"Pair"}],'
        '["flag",{"constant":false},true]],'
        '"result":{"object":[0,{"list":[{"constant":null},{"constant":"x"},1]}],"keys":["y","z"],"type":"Output"}}'
    )


def test_structure_and_names() -> None:
    batch, pair = EVERYTHING.parameters[1].tree, EVERYTHING.parameters[2].tree
    assert [leaf.index for leaf in leaves(batch)] == [1, 2, 1]
    assert [name for name, _ in named_leaves("batch", batch)] == ["batch['a b']", "batch[7][0]", "batch[7][1]"]
    assert build(batch, lambda i: i * 10) == {"a b": 10, 7: (20, 10)}
    built = build(pair, str)
    assert built == namedtuple("Pair", ["left", "right"])("3", 2.5)
    assert (type(built).__name__, built.right) == ("Pair", 2.5)
    assert build(EVERYTHING.result, lambda i: i) == {"y": 0, "z": [None, "x", 1]}


DAMAGED = {
    "": "Expecting value",
    "{": "Expecting property name",
    "null": "expected an object with 'parameters' and 'result', found None",
    '{"parameters":[]}': "expected an object with 'parameters' and 'result'",
    '{"parameters":{},"result":0}': "expected a list, found {}",
    '{"parameters":["ab"],"result":0}': "for a parameter, found 'ab'",
    '{"parameters":[["x"]],"result":0}': r"for a parameter, found \['x'\]",
    '{"parameters":[[1,0]],"result":0}': "expected a string, found 1",
    '{"parameters":[["x",0],["x",1]],"result":0}': r"two parameters have one name: \['x', 'x'\]",
    '{"parameters":[],"result":-1}': "leaf index -1 is negative",
    '{"parameters":[],"result":true}': "expected a leaf index or an object, found True",
    '{"parameters":[],"result":{"constant":[]}}': r"expected a number, a string or null, found \[\]",
    '{"parameters":[],"result":{"set":[0]}}': r"unknown container \['set'\]",
    '{"parameters":[],"result":{"tuple":"ab"}}': "expected a list, found 'ab'",
    '{"parameters":[],"result":{"tuple":[0],"keys":["a"]}}': "a tuple of 1 items has 1 keys",
    '{"parameters":[],"result":{"dict":[0],"keys":[]}}': "a dict of 1 items has 0 keys",
    '{"parameters":[],"result":{"dict":[0],"keys":[null]}}': "expected a string or integer key, found None",
    '{"parameters":[],"result":{"dict":[0,1],"keys":["a","a"]}}': "a dict has a key twice",
    '{"parameters":[],"result":{"namedtuple":[0],"keys":["a b"],"type":"T"}}': "cannot use the name 'a b'",
    '{"parameters":[],"result":{"namedtuple":[0],"keys":["class"],"type":"T"}}': "cannot use the name 'class'",
    '{"parameters":[],"result":{"namedtuple":[0],"keys":[0],"type":"T"}}': "cannot use the name 0",
    '{"parameters":[],"result":{"namedtuple":[0],"keys":["a"]}}': "cannot use the name ''",
    '{"parameters":[],"result":{"namedtuple":[0],"keys":["_a"],"type":"T"}}': "cannot start with an underscore",
    "[" * 100_000: "nested too deeply",
    '{"parameters":[],"result":' + '{"tuple":[' * 20_000 + "0" + "]}" * 20_000 + "}": "nested too deeply",
    '{"parameters":[],"result":' + "9" * 5000 + "}": "Exceeds the limit",
}


@pytest.mark.parametrize("text", DAMAGED, ids=lambda text: text[:60])
def test_damaged_text(text: str) -> None:
    with pytest.raises(SignatureError, match=DAMAGED[text]) as caught:
        Signature.from_json(text)
    assert str(caught.value).startswith("the method's signature is damaged: ")
    assert "Export the model again" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_mutated_text_gives_signature_errors_only() -> None:
    rng = random.Random(0)
    text = EVERYTHING.to_json()
    refused = 0
    for _ in range(3000):
        characters = list(text)
        for _ in range(rng.randint(1, 3)):
            characters[rng.randrange(len(characters))] = rng.choice('[]{}",:0123456789-aetnuls _')
        try:
            signature = Signature.from_json("".join(characters))
        except SignatureError:
            refused += 1
            continue
        for tree in (signature.result, *(parameter.tree for parameter in signature.parameters)):
            build(tree, lambda index: index)  # what was read can be built
        assert Signature.from_json(signature.to_json()) == signature
    assert refused > 1000


def test_long_values_do_not_flood_the_text() -> None:
    with pytest.raises(SignatureError) as caught:
        Signature.from_json(json.dumps({"parameters": [], "result": "x" * 100_000}))
    assert len(str(caught.value)) < 500
