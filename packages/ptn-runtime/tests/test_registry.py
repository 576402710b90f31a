"""The registry, against real dist-info folders."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from ptn_runtime import registry as registry_module
from ptn_runtime._version import __version__
from ptn_runtime.errors import EngineLoadError, EngineNotFoundError, EngineVersionError
from ptn_runtime.registry import Registry

GOOD = """
from ptn_runtime.engine import EngineSpec
SPEC = EngineSpec("{name}", {api}, "{module}:make", "a test engine", "{hint}", {priority})
def make():
    from ptn_runtime.engine import Engine
    class Made(Engine):
        name = "{name}"
        def devices(self): return ()
        def supports(self, node, device): raise NotImplementedError
        def create_host(self, device, **options): raise NotImplementedError
    return Made()
"""


class Site:
    """A folder of installed distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, distribution: str, version: str, entries: str, metadata: str | None = None) -> Path:
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n" if metadata is None else metadata
        (info / "METADATA").write_text(text)
        (info / "entry_points.txt").write_text(entries)
        return info

    def engine(
        self,
        name: str,
        version: str = "0.4.0",
        *,
        api: str = "(1, 0)",
        hint: str = "",
        priority: int = 0,
        code: str | None = None,
        distribution: str | None = None,
    ) -> None:
        module = f"fake_plugin_{self.folder.name}_{name}_{(distribution or '').replace('-', '_')}"
        text = GOOD if code is None else code
        for key, value in {"name": name, "api": api, "module": module, "hint": hint, "priority": priority}.items():
            text = text.replace("{" + key + "}", str(value))
        (self.folder / f"{module}.py").write_text(text)
        self.add(distribution or f"ptn-engine-{name}", version, f"[ptn.engines]\n{name} = {module}:SPEC\n")

    def registry(self) -> Registry:
        return Registry([str(self.folder)])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("PTN_ENGINES_DISABLE", raising=False)
    monkeypatch.setattr(registry_module, "__version__", "0.4.0")
    return Site(tmp_path)


def test_rows_come_from_metadata_without_imports(site: Site) -> None:
    site.engine("ggml")
    site.engine("boom", code="raise SystemExit('imported')")
    rows = site.registry().rows()
    assert [(row.name, row.distribution, row.version, row.problem) for row in rows] == [
        ("boom", "ptn-engine-boom", "0.4.0", None),
        ("ggml", "ptn-engine-ggml", "0.4.0", None),
    ]
    assert not [name for name in sys.modules if name.startswith(f"fake_plugin_{site.folder.name}")]


def test_scanned_once(site: Site) -> None:
    site.engine("ggml")
    registry = site.registry()
    first = registry.rows()
    site.engine("late")
    assert registry.rows() == first


def test_engine_is_made_once(site: Site) -> None:
    site.engine("ggml")
    registry = site.registry()
    engine = registry.engine("ggml")
    assert engine.name == "ggml"
    assert registry.engine("ggml") is engine


def test_unknown_name_suggests(site: Site) -> None:
    site.engine("ggml")
    site.engine("reference")
    with pytest.raises(EngineNotFoundError) as caught:
        site.registry().engine("gmll")
    assert str(caught.value) == (
        "no engine named 'gmll' is installed. Installed: ggml 0.4.0, reference 0.4.0. Did you mean 'ggml'?"
    )


def test_unknown_name_without_engines(site: Site) -> None:
    with pytest.raises(EngineNotFoundError) as caught:
        site.registry().engine("ggml")
    assert str(caught.value) == "no engine named 'ggml' is installed. Installed: none."


def test_too_new_is_refused_before_the_factory_is_imported(site: Site) -> None:
    code = GOOD.replace("{module}:make", "module_that_must_not_be_imported:make")
    site.engine("foo", "1.2", api="(2, 0)", code=code)
    registry = site.registry()
    with pytest.raises(EngineVersionError) as caught:
        registry.engine("foo")
    assert str(caught.value) == (
        "ptn-engine-foo 1.2 was written for engine API 2.0; ptn-runtime 0.4.0 offers 1.0. "
        "Upgrade ptn-runtime or install ptn-engine-foo<1.2."
    )


def test_newer_minor_and_older_major_are_refused(site: Site) -> None:
    site.engine("minor", "1.2", api="(1, 1)")
    site.engine("old", "1.2", api="(0, 9)")
    registry = site.registry()
    with pytest.raises(EngineVersionError, match=r"engine API 1\.1; .* offers 1\.0\. Upgrade ptn-runtime or"):
        registry.spec("minor")
    with pytest.raises(EngineVersionError, match=r"engine API 0\.9; .* offers 1\.0\. Upgrade ptn-engine-old or"):
        registry.spec("old")


def test_missing_module_is_a_load_error_with_the_hint(site: Site) -> None:
    code = GOOD.replace("{module}:make", "module_that_is_missing:make")
    site.engine("ggml", code=code, hint="pip install ggml-library")
    with pytest.raises(EngineLoadError) as caught:
        site.registry().engine("ggml")
    assert str(caught.value) == (
        "engine 'ggml' (ptn-engine-ggml 0.4.0) could not be loaded: ModuleNotFoundError: "
        "No module named 'module_that_is_missing'. pip install ggml-library."
    )
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise RuntimeError('broken wheel')", "RuntimeError: broken wheel"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def", "SyntaxError"),
        ("", "has no attribute 'SPEC'"),
        ("SPEC = 5", "is a int, not an EngineSpec"),
        (GOOD.replace('"{name}"', '"other"'), "calls itself 'other'"),
        (GOOD.replace("return Made()", "raise OSError('no library')"), "OSError: no library"),
        (GOOD.replace("return Made()", "return 7"), "gave a int, not an Engine"),
        (GOOD.replace("{module}:make", "{module}:nothing"), "has no attribute 'nothing'"),
    ],
)
def test_broken_plugins_hurt_only_those_who_ask(site: Site, code: str, words: str) -> None:
    site.engine("bad", code=code)
    site.engine("good")
    registry = site.registry()
    assert registry.engine("good").name == "good"
    for _ in range(2):
        with pytest.raises(EngineLoadError) as caught:
            registry.engine("bad")
        assert words in str(caught.value)
        assert "ptn-engine-bad 0.4.0" in str(caught.value)


def test_an_engines_own_error_passes_unchanged(site: Site) -> None:
    text = "ptn-engine-ggml 0.4.0 was built with ggml 0.20.2 but another is loaded."
    body = f"from ptn_runtime.errors import EngineLoadError\n    raise EngineLoadError({text!r})"
    site.engine("ggml", code=GOOD.replace("return Made()", body))
    with pytest.raises(EngineLoadError) as caught:
        site.registry().engine("ggml")
    assert str(caught.value) == text


def test_duplicates_name_both(site: Site) -> None:
    site.engine("ggml", distribution="ptn-engine-ggml")
    site.engine("ggml", "9.0", distribution="other-ggml")
    site.engine("good")
    registry = site.registry()
    assert registry.names() == ("good",)
    assert [row.name for row in registry.rows()] == ["ggml", "ggml", "good"]
    with pytest.raises(EngineLoadError) as caught:
        registry.engine("ggml")
    assert str(caught.value) == (
        "2 distributions announce an engine named 'ggml': other-ggml 9.0 and ptn-engine-ggml 0.4.0. "
        "Uninstall all but one."
    )


def test_one_distribution_found_twice_counts_once(tmp_path: Path, site: Site) -> None:
    site.engine("ggml")
    second = Site(tmp_path / "second")
    second.folder.mkdir()
    second.engine("ggml", "0.3.0")
    rows = Registry([str(site.folder), str(second.folder)]).rows()
    assert [(row.version, row.problem) for row in rows] == [("0.4.0", None)]


@pytest.mark.parametrize("entry", ["ggml", "ggml =", "= a:b", "ggml = a b:c", "ggml = module"])
def test_damaged_entry_points_are_rows(site: Site, entry: str) -> None:
    site.add("ptn-engine-bad", "1.0", f"[console_scripts]\nx = y:z\n[ptn.engines]\n{entry}\n")
    site.engine("good")
    registry = site.registry()
    bad = [row for row in registry.rows() if row.name != "good"]
    assert len(bad) == 1
    assert "damaged entry point" in str(bad[0].problem)
    assert "ptn-engine-bad 1.0" in str(bad[0].problem)
    assert registry.engine("good").name == "good"


def test_damaged_metadata_still_gives_a_row(site: Site) -> None:
    site.engine("good")
    info = site.add("ptn-engine-odd", "1.0", "[ptn.engines]\nodd = nowhere:SPEC\n", metadata="")
    (info / "METADATA").unlink()
    rows = {row.name: row for row in site.registry().rows()}
    assert rows["odd"].distribution == "ptn_engine_odd"
    assert rows["odd"].version == "?"
    broken = site.folder / "not_utf8-1.0.dist-info"
    broken.mkdir()
    (broken / "entry_points.txt").write_bytes(b"[ptn.engines]\nx = \xff\xfe:SPEC\n")
    assert site.registry().engine("good").name == "good"


def test_disabled_by_environment(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.engine("ggml")
    site.engine("reference")
    registry = site.registry()
    monkeypatch.setenv("PTN_ENGINES_DISABLE", " ggml , vulkan")
    assert registry.names() == ("reference",)
    assert {row.name: row.problem for row in registry.rows()} == {
        "ggml": "disabled by PTN_ENGINES_DISABLE",
        "reference": None,
    }
    with pytest.raises(EngineNotFoundError) as caught:
        registry.engine("ggml")
    assert str(caught.value) == (
        "engine 'ggml' is disabled by PTN_ENGINES_DISABLE= ggml , vulkan. Installed: reference 0.4.0. "
        "Remove its name from the variable to use it."
    )
    monkeypatch.delenv("PTN_ENGINES_DISABLE")
    assert registry.engine("ggml").name == "ggml"


def test_the_reference_engine_is_announced() -> None:
    rows = {row.name: row for row in Registry().rows()}
    assert rows["reference"].distribution == "ptn-runtime"
    assert rows["reference"].version == __version__


def test_importing_the_runtime_is_light() -> None:
    code = textwrap.dedent("""
        import sys, numpy, time
        start = time.perf_counter()
        import ptn_runtime
        taken = time.perf_counter() - start
        heavy = {"torch", "importlib.metadata", "argparse", "ml_dtypes", "flatbuffers", "zipfile"}
        print(taken, sorted(heavy & set(sys.modules)))
        ptn_runtime.load, ptn_runtime.Model
        print(sorted({"torch", "argparse"} & set(sys.modules)))
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    first, second = done.stdout.splitlines()
    seconds, modules = first.split(" ", 1)
    assert modules == "[]"
    assert second == "[]"
    assert float(seconds) < 0.15
