"""Print the test files that a change reaches: `scripts/changed_tests.py COMMIT`.

The change is every difference from COMMIT in the working tree. It reaches a test file that is
changed or that imports a changed module, directly or not. A name in quotes counts as an import: a
module ("penstock.cli"), or, in tests, one of the same folder ("child.py", "child"). So do entry
points. Other files that a test reads, such as pages of docs, are not tracked.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"penstock": ROOT / "src", "tests": ROOT, "tests_support": ROOT}
QUOTED = re.compile(r"""["']((?:penstock|tests|tests_support)(?:\.\w+)+|\w+(?:\.py)?)(?=[:"'])""")
EVERYTHING = frozenset({"pyproject.toml", "requirements.lock", "tests/conftest.py"})
"""Files that reach every test."""


def git(*arguments: str) -> list[str]:
    command = ("git", *arguments)
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()


def changed(base: str) -> set[str]:
    """Paths that differ from a commit in this working tree, and new ones."""
    return {
        *git("diff", "--name-only", "--relative", "--no-renames", base),
        *git("ls-files", "--others", "--exclude-standard"),
    }


def module_of(path: str) -> str | None:
    """The module in that file of the repository."""
    name = path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__")
    module = name.replace("/", ".")
    return module if path.endswith(".py") and module.split(".", 1)[0] in PACKAGES else None


def files() -> dict[str, Path]:
    """The files of all modules, by module."""
    found: dict[str, Path] = {}
    for package, root in PACKAGES.items():
        for file in (root / package).rglob("*.py"):
            module = module_of(str(file.relative_to(ROOT)))
            if module is not None:
                found[module] = file
    return found


def import_graph(modules: dict[str, Path]) -> grimp.ImportGraph:
    """Imports between modules, with those by name."""
    sys.path[:0] = [str(root) for root in PACKAGES.values()]
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)

    def add(importer: str, imported: str) -> None:
        if importer != imported and imported in modules:
            graph.add_import(importer=importer, imported=imported)

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    behind = [
        at.split(":")[0] for group in project["entry-points"].values() for at in group.values()
    ]
    for module, file in modules.items():
        text = file.read_text()
        for quoted in QUOTED.findall(text):
            add(module, quoted)
            add(module, f"{quoted}.__main__")
            if module.startswith("tests."):
                add(module, f"{module.rpartition('.')[0]}.{quoted.removesuffix('.py')}")
        if "entry_points(" in text:
            for found in behind:
                add(module, found)
        for folder in file.parents:
            if folder == ROOT / "tests" or not folder.is_relative_to(ROOT / "tests"):
                break
            if (folder / "conftest.py").exists():
                add(module, f"{'.'.join(folder.relative_to(ROOT).parts)}.conftest")
    return graph


def reached(paths: set[str]) -> list[Path]:
    """Test files that these paths reach."""
    modules = files()
    tests = {
        name
        for name, file in modules.items()
        if name.startswith("tests.") and file.name.startswith("test_")
    }
    if paths & EVERYTHING:
        return sorted(modules[name] for name in tests)
    graph = import_graph(modules)
    found: set[str] = set()
    for path in paths:
        module = module_of(path)
        if module in graph.modules:
            found |= {module, *graph.find_downstream_modules(module)}
    return sorted(modules[name] for name in tests & found)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: scripts/changed_tests.py COMMIT", file=sys.stderr)
        return 2
    for file in reached(changed(arguments[0])):
        print(file.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
