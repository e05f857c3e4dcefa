"""Rules about the code itself: sizes, imports, and that every example in the documentation runs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    p for folder in ("src", "tests", "benchmarks", "examples", "scripts") for p in (ROOT / folder).rglob("*.py")
)
PACKAGE = [path for path in SOURCES if path.is_relative_to(ROOT / "src")]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LIMIT = 60
KNOT = 4
BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.untraced
def test_no_function_is_longer_than_sixty_lines() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path, tree in trees(SOURCES).items()
        for node in statements(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno - node.lineno + 1 > LIMIT
    ]
    assert long == []


@pytest.mark.untraced
def test_a_class_name_exists_once_in_the_package() -> None:
    places = defaultdict(list)
    for path, tree in trees(PACKAGE).items():
        for node in statements(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


@pytest.mark.untraced
def test_no_import_knot_has_more_than_four_modules() -> None:
    """Imports inside functions and under TYPE_CHECKING count: a knot cannot be read piece by piece."""
    import networkx

    graph = networkx.DiGraph(import_edges())
    knots = [sorted(knot) for knot in networkx.strongly_connected_components(graph) if len(knot) > KNOT]
    assert knots == []


@pytest.mark.untraced
def test_only_one_module_loads_models_with_transformers() -> None:
    """Whoever calls `from_pretrained` elsewhere may run code that came with a model folder."""
    callers = {
        str(path.relative_to(ROOT))
        for path, tree in trees(path for path in PACKAGE if "from_pretrained" in path.read_text("utf-8")).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "from_pretrained"
    }
    assert callers == {"src/agent_forge/inference/loading.py"}


def import_edges() -> Iterator[tuple[str, str]]:
    names = {path: ".".join(path.relative_to(ROOT / "src").with_suffix("").parts) for path in PACKAGE}
    modules = {path: name.removesuffix(".__init__") for path, name in names.items()}
    known = set(modules.values())
    for path, tree in trees(PACKAGE).items():
        for node in statements(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                named = (f"{node.module}.{alias.name}" for alias in node.names)
                targets = {name if name in known else node.module for name in named}
            elif isinstance(node, ast.Import):
                targets = {alias.name for alias in node.names}
            else:
                continue
            yield from ((modules[path], target) for target in targets & known if target != modules[path])


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def trees(paths: Iterable[Path]) -> dict[Path, ast.Module]:
    return {path: tree_of(path) for path in paths}


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """What `ast.walk` finds, without expressions, which hold most of a tree's nodes."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, name, ())


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ```python blocks of a page run in order in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENT_FORGE_HOME", str(tmp_path / "home"))
    namespace: dict[str, object] = {"__name__": "__main__"}
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        for need in re.findall(r"requires=(\w+)", match[1]):
            if find_spec(need) is None:
                pytest.skip(f"{page.name} needs {need}, which is not installed")
        line = text[: match.start()].count("\n") + 1
        exec(compile("\n" * line + match[2], str(page), "exec"), namespace)
    assert "not implemented" not in text.lower()


LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    targets = [target for target in LINK.findall(prose) if "://" not in target and not target.startswith("mailto:")]
    assert [target for target in targets if not (page.parent / target).exists()] == []


HEAVY = ("torch", "transformers", "numpy", "sqlalchemy", "starlette", "fastapi", "pydantic", "rich", "httpx", "psycopg")
# plans, traces and runtime run on a machine with nothing but Python and PyYAML
THIRD_PARTY = {"yaml"}


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print('\\n'.join(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


COMMAND_LINE = re.compile(r"(?:^[ $]*|`)agent-forge (?!is listening)([^`\n#|]*(?:\\\n[^`\n#|]*)*)", re.MULTILINE)


@pytest.mark.untraced
def test_the_commands_in_the_documentation_exist() -> None:
    """Every `agent-forge …` of a page: the command, and the options that follow it."""
    import click

    from agent_forge.cli._app import app
    from agent_forge.cli.train import TrainGroup

    wrong, count = [], 0
    for page in PAGES:
        for line in COMMAND_LINE.findall(page.read_text(encoding="utf-8")):
            words = line.partition("&&")[0].replace("\\\n", " ").split()
            command, context = app, click.Context(app)
            while isinstance(command, click.Group) and words and re.fullmatch("[a-z][a-z-]*", words[0]):
                name = words.pop(0)
                found = command.get_command(context, name)
                found = found or (command.commands["agent"] if isinstance(command, TrainGroup) else None)
                if found is None:
                    wrong.append(f"{page.name}: {name} in {line!r}")
                    break
                command, context = found, click.Context(found, parent=context)
            else:
                if isinstance(command, TrainGroup):
                    command = command.commands["agent"]
                if command.context_settings.get("ignore_unknown_options"):  # they go to a script
                    continue
                options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
                used = {word.partition("=")[0].strip("[]().,") for word in words if re.match(r"\[?--[a-z]", word)}
                wrong += [f"{page.name}: {name} in {line!r}" for name in used - options - {"--help"}]
                count += 1
    assert not wrong, "\n".join(wrong)
    assert count > 100


@pytest.mark.parametrize("module", ["agent_forge", "agent_forge.cli._app", "agent_forge.plans", "agent_forge.agents"])
def test_importing_is_light(module: str) -> None:
    assert loaded_by(f"import {module}").isdisjoint(HEAVY)


@pytest.mark.parametrize("room", ["plans", "traces", "runtime"])
def test_the_lower_rooms_import_with_the_standard_library_and_yaml(room: str) -> None:
    foreign = loaded_by(f"import agent_forge.{room}") - set(sys.stdlib_module_names) - {"agent_forge"}
    assert {name for name in foreign if not name.startswith("_")} <= THIRD_PARTY


def test_a_violated_contract_breaks_the_build(tmp_path: Path) -> None:
    """The import contracts do what they say: a forbidden import in a copy of the package is reported. The others hold
    there, as `make lint` finds them to do here."""
    import shutil

    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", tmp_path / ".importlinter")
    with open(tmp_path / "src/agent_forge/plans/__init__.py", "a") as file:
        file.write("\nfrom agent_forge import runtime as _runtime\n")
    env = {"PYTHONPATH": str(tmp_path / "src"), "PATH": "/usr/bin:/bin"}
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    broken = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert broken.returncode == 1
    assert re.findall(r"^(.*) BROKEN$", broken.stdout, re.MULTILINE) == ["plans imports no other room"]
    assert " KEPT" in broken.stdout
