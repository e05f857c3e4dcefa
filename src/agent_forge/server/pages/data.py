"""The audits of training data that were saved in the home folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from agent_forge.errors import DataError
from agent_forge.server.context import Context
from agent_forge.server.dashboard import DashboardPage, Document, NotFound, page_routes

FOLDER = "audits"
LARGEST = 32 << 20
HOW = {
    "green": "within its threshold",
    "amber": "over a soft threshold, or over half of a hard one",
    "red": "over a hard threshold: the audit failed",
    "not measured": "no figure, so no verdict",
}


def routes(context: Context) -> list[BaseRoute]:
    """The list of audits, and one of them."""
    return [
        *page_routes(context, "/data", "data.html", data_page),
        *page_routes(context, "/data/{name}", "audit.html", audit_page),
    ]


def files(home: Path) -> dict[str, Path]:
    """The reports by name, newest first. Names from requests are only looked up here, never used as paths."""
    reports = [file for file in (home / FOLDER).glob("*.json") if file.is_file()]
    return {file.stem: file for file in sorted(reports, key=lambda file: (-file.stat().st_mtime, file.name))}


def read(file: Path) -> dict[str, Any]:
    """A report. Raises DataError for any other file."""
    try:
        if file.stat().st_size > LARGEST:
            raise ValueError(f"it is larger than {LARGEST} bytes")
        report = json.loads(file.read_text(encoding="utf-8"))
        final = report.get("after", report)
        missing = {"file", "rows", "checks", "pii", "duplicates", "lengths", "schema"} - set(final)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise DataError(f"the report cannot be read: {error}", where=file.name) from error
    if missing:
        raise DataError(f"not an audit report: it has no {sorted(missing)[0]!r}", where=file.name)
    return dict(report)


def data_page(context: Context, request: Request) -> Document:
    """The audits, newest first."""
    lines = []
    for name, file in files(context.home).items():
        try:
            lines.append(_line(name, file, read(file)))
        except DataError as error:
            lines.append({"name": name, "at_s": file.stat().st_mtime, "error": str(error)})
    return {"audits": lines, "folder": FOLDER, "version": watch(context, "")}


def _line(name: str, file: Path, report: Mapping[str, Any]) -> dict[str, Any]:
    final = report.get("after", report)
    return {
        "name": name,
        "file": final["file"],
        "at_s": file.stat().st_mtime,
        "rows": final["rows"],
        "bytes": final["bytes"],
        "passed": report["passed"],
        "verdicts": dict(Counter(check["verdict"] for check in final["checks"])),
        "compares": report["before"]["file"] if "before" in report else None,
        "error": None,
    }


def audit_page(context: Context, request: Request) -> Document:
    """One audit, or two side by side."""
    name = request.path_params["name"]
    file = files(context.home).get(name)
    if file is None:
        raise NotFound(f"there is no audit {name[:80]!r}", fix="/data lists them")
    report = read(file)
    before = {change["check"]: change for change in report.get("changes", ())}
    return {
        "name": name,
        "at_s": file.stat().st_mtime,
        "passed": report["passed"],
        "report": report.get("after", report),
        "before": report.get("before"),
        "changes": before,
        "how": HOW,
    }


def watch(context: Context, _: str) -> str:
    """Changes whenever a report is added or removed."""
    return "-".join(f"{name}:{file.stat().st_mtime_ns}" for name, file in list(files(context.home).items())[:5])


PAGE = DashboardPage("Data", "/data", "d", 60, routes, {"data": watch})
