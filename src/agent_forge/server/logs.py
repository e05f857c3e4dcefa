"""Structured logs: one JSON object per line on stderr, with the trace id of the request."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, TextIO

import structlog

from agent_forge.terminal import printable_json

# Without the values of variables: they contain what clients sent, tokens included.
TRACEBACK = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def make_log(level: str = "info", file: TextIO | None = None) -> Any:
    """A structlog logger that writes JSON lines. Fields bound with `structlog.contextvars` are in every line."""
    return structlog.wrap_logger(
        structlog.WriteLogger(file or sys.stderr),
        processors=_processors(),
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        cache_logger_on_first_use=True,
    )


def _processors() -> list[Any]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(TRACEBACK),
        structlog.processors.JSONRenderer(_json_line, ensure_ascii=False, default=str),
    ]


def _json_line(event: Any, **options: Any) -> str:
    return printable_json(
        json.dumps(event, **options)
    )  # clients choose paths and names, and logs are read in terminals


class ToLog(logging.Handler):
    """Passes records of the standard library's logging (uvicorn, transformers) to a structlog logger."""

    def __init__(self, log: Any) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record as a line."""
        try:
            level = {"critical": "error", "notset": "debug"}.get(record.levelname.lower(), record.levelname.lower())
            exception = {"exc_info": record.exc_info} if record.exc_info else {}
            getattr(self._log, level)(record.getMessage(), logger=record.name, **exception)
        except Exception:
            self.handleError(record)


def take_over(log: Any, names: tuple[str, ...] = ("uvicorn", "uvicorn.error", "asyncio")) -> None:
    """Redirects these standard-library loggers to ours."""
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [ToLog(log)], False
        logger.setLevel(logging.WARNING)  # uvicorn logs every start and stop; so do we
