"""Every model of the zoo equals eager PyTorch on every engine that accepts it, and `docs/models.md` says so."""

import re

import pytest
from zoo import ENTRIES, page, run


@pytest.fixture(params=ENTRIES, ids=str)
def entry(request):
    return request.param


@pytest.mark.parametrize("engine", run.ENGINES)
def test_equals_eager(entry, engine):
    run.exported(entry)
    reason = run.refusal(entry.name, engine)
    if engine in entry.refused:
        assert reason is not None, f"{engine} runs {entry.name} now: take it out of `refused`"
        assert re.search(entry.refused[engine], reason)
        return
    assert reason is None, f"{engine} refuses {entry.name}: {reason}"
    run.assert_equals_eager(entry, engine)


def test_the_page_has_the_row(entry, models_page):
    row = page.row(entry)
    if models_page.writing:
        models_page.rows[entry.name] = row
    assert models_page.rows.get(entry.name) == row, "docs/models.md is stale; run: nox -s models"


def test_the_page_has_nothing_else(models_page):
    if not models_page.writing:
        names = [entry.name for entry in ENTRIES]
        assert sorted(models_page.rows) == sorted(names), "docs/models.md is stale; run: nox -s models"
        assert page.PATH.read_text(encoding="utf-8") == page.document(ENTRIES, models_page.rows)
