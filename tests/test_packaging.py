"""What is built is what was meant: the wheel's packages, modules, entry points and extras."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer

ROOT = Path(__file__).resolve().parent.parent

# Runs inside the fresh environment: imports every module, loads every entry point, and says where
# each came from, so that nothing is taken from the checkout by accident.
PROBE = """
import importlib, importlib.metadata, pkgutil, sys
prefix, *packages = sys.argv[1:]
for package in packages:
    top = importlib.import_module(package)
    for found in pkgutil.walk_packages(top.__path__, package + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
for name, module in sorted(sys.modules.items()):
    if name.split(".")[0] in packages and not (module.__file__ or "").startswith(prefix):
        sys.exit(f"{name} was imported from {module.__file__}")
for entry in importlib.metadata.distribution("raftkv").entry_points:
    assert callable(entry.load()), entry
    print(entry.group, entry.name)
"""


def metadata() -> configparser.ConfigParser:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    return setup


def listed_packages() -> list[str]:
    return sorted(metadata()["options"]["packages"].split())


def packages_on_disk() -> list[str]:
    """Folders with an __init__.py under raftkv/ and plugins/, as import names."""
    return sorted(
        file.parent.relative_to(base).as_posix().replace("/", ".")
        for base, pattern in ((ROOT, "raftkv/**/__init__.py"), (ROOT / "plugins", "**/__init__.py"))
        for file in base.glob(pattern)
    )


def test_setup_cfg_lists_exactly_the_packages_that_exist() -> None:
    assert listed_packages() == packages_on_disk()


def test_every_plugin_package_is_mapped_and_typed() -> None:
    setup = metadata()
    lines = setup["options"]["package_dir"].strip().splitlines()
    mapping = dict(tuple(map(str.strip, line.split("="))) for line in lines)
    data = setup["options.package_data"]
    for folder in sorted((ROOT / "plugins").glob("*/__init__.py")):
        name = folder.parent.name
        assert mapping[name] == f"plugins/{name}"
        assert data[name] == "py.typed"
        assert (folder.parent / "py.typed").is_file()


def test_pyproject_only_names_the_build_backend() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if line.startswith("[")] == ["[build-system]"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by `python -m build` from a source archive, as a release would be."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    folders = {name.rpartition("/")[0].replace("/", ".") for name in names}
    code = {folder for folder in folders if ".dist-info" not in folder}
    assert code == set(listed_packages())
    assert "raftkv/py.typed" in names
    assert any(name.endswith("/LICENSE") for name in names)


@pytest.mark.slow
def test_the_wheel_installs_imports_and_loads_its_entry_points(wheel: Path, tmp_path: Path) -> None:
    python = fresh_environment(tmp_path / "fresh")
    install = [python, "-m", "pip", "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    tops = sorted({name.split(".")[0] for name in listed_packages()})
    probe = subprocess.run(
        [python, "-c", PROBE, str(tmp_path / "fresh"), *tops],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
    )
    assert probe.returncode == 0, probe.stderr
    assert "console_scripts raftkv" in probe.stdout
    for plugin in ("calls", "conf", "lcr", "limbo", "subscriptions", "txqueue"):
        assert f"raftkv.plugins {plugin}" in probe.stdout
    command = str(Path(python).parent / "raftkv")
    shown = subprocess.run([command, "--help"], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert "serve" in shown.stdout


def fresh_environment(folder: Path) -> str:
    """An environment that has our dependencies but neither this checkout nor an older raftkv.

    The dependencies are seen through a .pth file that names the running environment's packages;
    its own .pth files (an editable install of this checkout is one) are not followed from there.
    """
    venv.create(folder, with_pip=True)
    scripts = "Scripts" if os.name == "nt" else "bin"
    python = folder / scripts / "python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    asked = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=True)
    seen = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    Path(asked.stdout.strip(), "dependencies.pth").write_text("\n".join(sorted(seen)) + "\n")
    return str(python)


def test_each_announced_group_of_commands_is_one_of_its_plugin() -> None:
    """The names in setup.cfg are those that the plugins give."""
    points = metadata()["options.entry_points"]
    announced = {each.name: each.load() for each in entries(points["raftkv.commands"])}
    given: dict[str, typer.Typer] = {}
    for each in entries(points["raftkv.plugins"]):
        made = each.load()().cli()
        given |= made if isinstance(made, Mapping) else {each.name: made}
    assert announced == given


def entries(lines: str) -> list[EntryPoint]:
    parts = [line.partition("=") for line in lines.strip().splitlines()]
    return [EntryPoint(name.strip(), value.strip(), "") for name, _, value in parts]
