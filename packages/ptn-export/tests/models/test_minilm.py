import minilm
import numpy as np
import ptn_runtime
import pytest
import torch
from ptn_export import to_native

SENTENCES = [
    "A cat sits on the mat.",
    "A kitten is resting on a rug.",
    "The stock market fell sharply today.",
    "Shares lost much of their value this morning, analysts say, and nobody knows when they will recover.",
]


@pytest.fixture(scope="module")
def encoder():
    return minilm.load_encoder()


@pytest.fixture(scope="module")
def package(encoder, tmp_path_factory):
    path = tmp_path_factory.mktemp("minilm") / "minilm.ptn"
    to_native(minilm.export_encoder(encoder)).save(path)
    return path


def test_embeddings_equal_eager_for_every_batch_and_length(engine, encoder, package):
    tokenize = minilm.Tokenizer()
    batches = [SENTENCES, SENTENCES[:1], ["Hi."], [SENTENCES[3] * 4] * 2]
    with ptn_runtime.load(package, engine=engine) as model:
        for sentences in batches:
            ids, mask = tokenize(sentences)
            embeddings = model(ids.numpy(), mask=mask.numpy())
            expected = encoder(ids, mask).numpy()
            np.testing.assert_allclose(embeddings, expected, atol=1e-4, rtol=0)


def test_related_sentences_rank_first(engine, package):
    ids, mask = minilm.Tokenizer()(SENTENCES)
    with ptn_runtime.load(package, engine=engine) as model:
        embeddings = model(ids.numpy(), mask.numpy())
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1.0, atol=1e-5)
    similarity = embeddings @ embeddings.T - 2 * np.eye(len(SENTENCES))
    assert similarity.argmax(axis=1).tolist() == [1, 0, 3, 2]


def test_the_package_describes_itself(package):
    with ptn_runtime.load(package, engine="reference") as model:
        text = str(model.describe("forward"))
    assert "ids" in text
    assert "1..64" in text
    assert "1..512" in text


def test_an_id_outside_the_vocabulary_is_an_error_and_the_engine_survives(engine, encoder, package):
    ids = torch.tensor([[101, 30522, 102]])
    mask = torch.ones_like(ids)
    with ptn_runtime.load(package, engine=engine) as model:
        with pytest.raises(IndexError, match="30522"):
            model(ids.numpy(), mask.numpy())
        ids[0, 1] = 30521
        np.testing.assert_allclose(model(ids.numpy(), mask.numpy()), encoder(ids, mask).numpy(), atol=1e-4)
