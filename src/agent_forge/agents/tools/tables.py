"""Two tools that query JSON and CSV with JMESPath."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from typing import Annotated, Any

from agent_forge.agents.tools.query import query as run_query
from agent_forge.agents.tools.tool import tool
from agent_forge.errors import ToolError

_NUMBER = re.compile(r"[+-]?(?:0|[1-9]\d{0,200})(?:\.\d+)?(?:[eE][+-]?\d{1,2})?")
MOST_CHARACTERS = 5_000_000
MOST_RESULT_CHARACTERS = 200_000

Query = Annotated[str, "a JMESPath expression, for example: items[?price > `10` && kind == 'book'].title"]


def read_json(text: str) -> Any:
    """A JSON value from text. Raises ToolError with the line and column."""
    _small(text)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ToolError(f"the data is not JSON: {error}") from error
    except (RecursionError, ValueError) as error:
        raise ToolError(f"the data cannot be read as JSON: {error}") from error


def read_csv(text: str, delimiter: str = ",") -> list[dict[str, Any]]:
    """The rows of a CSV text as objects; numeric cells become numbers, empty cells null.

    >>> read_csv("name,age\\nAda,36\\nAlan,\\n")
    [{'name': 'Ada', 'age': 36}, {'name': 'Alan', 'age': None}]

    Raises ToolError for empty or repeated column names and for rows of the wrong length.
    """
    _small(text)
    if len(delimiter) != 1:
        raise ToolError(f"the delimiter must be one character, got {delimiter!r}")
    try:
        reader = csv.reader(io.StringIO(text.lstrip("\ufeff"), newline=""), delimiter=delimiter, strict=True)
        header = next(reader, [])
        if not header or not all(name.strip() for name in header):
            raise ToolError("the first line of the CSV must name every column")
        repeated = [name for name, count in Counter(header).items() if count > 1]
        if repeated:
            raise ToolError(f"two columns are named {repeated[0]!r}")
        return [_row(header, cells, reader.line_num) for cells in reader if cells]
    except csv.Error as error:
        raise ToolError(f"the data is not CSV: {error}") from error


def _small(text: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise ToolError(f"the data has {len(text):,} characters, the limit is {MOST_CHARACTERS:,}")


def _row(header: list[str], cells: list[str], line: int) -> dict[str, Any]:
    if len(cells) != len(header):
        raise ToolError(f"line {line} of the CSV has {len(cells)} cells, the header has {len(header)}")
    return {name: _cell(cell.strip()) for name, cell in zip(header, cells, strict=True)}


def _cell(text: str) -> Any:
    """Numbers as numbers; postal codes and the like keep their leading zeros and stay text."""
    if not text:
        return None
    if not _NUMBER.fullmatch(text):
        return text
    return float(text) if any(mark in text for mark in ".eE") else int(text)


def _checked(result: Any) -> Any:
    """The result, if it is JSON of a reasonable size. Encoded in pieces: shared parts may make it huge as text."""
    size = 0
    try:
        for piece in json.JSONEncoder(ensure_ascii=False, allow_nan=False).iterencode(result):
            size += len(piece)
            if size > MOST_RESULT_CHARACTERS:
                raise ToolError(
                    f"the result has more than {MOST_RESULT_CHARACTERS:,} characters",
                    fix="Narrow it with a filter, or end the query with `[:100]`",
                )
    except (ValueError, TypeError) as error:
        raise ToolError(f"the result is not JSON: {error}") from error
    return result


@tool
def query_json(data: Any, query: Query) -> Any:
    """Queries JSON data.

    Args:
        data: JSON text or a JSON value
    """
    return _checked(run_query(read_json(data) if isinstance(data, str) else data, query))


@tool
def query_csv(data: str, query: Query, delimiter: str = ",") -> Any:
    """Queries a CSV table; the rows are a list of objects whose fields are the columns.

    Args:
        data: CSV text whose first line names the columns
        delimiter: the character between cells
    """
    return _checked(run_query(read_csv(data, delimiter), query))
