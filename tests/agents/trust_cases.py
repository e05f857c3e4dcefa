"""Twelve tools of a user's own, and thirty requests with the calls that they mean.

The requests were written before the code that reads them, and the second half was not looked at while that code was
written: `UNSEEN` is never to be used for tuning. A case is a request and its calls in order; `{s1}` is the result of
the first call, and None means that the request does not say enough.
"""

from __future__ import annotations

from typing import Any, Literal

from agent_forge import Toolbox, tool

Calls = list[tuple[str, dict[str, Any]]]
DONE: list[tuple[str, dict[str, Any]]] = []  # what the tools were really called with


def _called(name: str, **args: Any) -> None:
    DONE.append((name, args))


@tool
def read_csv(path: str) -> list[dict[str, Any]]:
    """Reads a CSV file.

    Args:
        path: path of the file
    """
    _called("read_csv", path=path)
    return [{"region": "north", "sales": 12}, {"region": "south", "sales": 30}]


@tool
def exchange_rate(currency: str) -> float:
    """Gets the exchange rate of the euro to a currency."""
    _called("exchange_rate", currency=currency)
    return 11.5


@tool
def get_weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
    """Gets the weather of a city."""
    _called("get_weather", city=city, unit=unit)
    return f"rain in {city}"


@tool
def convert_units(value: float, from_unit: Literal["km", "miles"], to_unit: Literal["km", "miles"]) -> float:
    """Converts a length from one unit to another."""
    _called("convert_units", value=value, from_unit=from_unit, to_unit=to_unit)
    return value * 1.6


@tool(side_effects=True)
def send_email(to: str, subject: str, body: str) -> str:
    """Sends an email.

    Args:
        to: email address of the recipient
    """
    _called("send_email", to=to, subject=subject, body=body)
    return "sent"


@tool(side_effects=True)
def delete_file(path: str) -> str:
    """Deletes a file."""
    _called("delete_file", path=path)
    return "deleted"


@tool
def search_flights(origin: str, destination: str, date: str, cabin: Literal["economy", "business"] = "economy") -> str:
    """Searches flights between two cities on a date."""
    _called("search_flights", origin=origin, destination=destination, date=date, cabin=cabin)
    return "SK 1467"


@tool(side_effects=True)
def create_event(title: str, date: str, time: str) -> str:
    """Creates an event in the calendar."""
    _called("create_event", title=title, date=date, time=time)
    return "event 7"


@tool
def stock_price(symbol: str) -> float:
    """Gets the price of a stock by its ticker symbol."""
    _called("stock_price", symbol=symbol)
    return 101.5


@tool
def translate(text: str, language: str) -> str:
    """Translates a text into a language."""
    _called("translate", text=text, language=language)
    return f"{language}: {text}"


@tool
def summarise(text: str, sentences: int = 3) -> str:
    """Summarises a text in a few sentences."""
    _called("summarise", text=text, sentences=sentences)
    return "short"


@tool
def pick_rows(rows: list[dict[str, Any]], column: str, count: int) -> list[dict[str, Any]]:
    """Picks the rows of a table with the largest values in a column."""
    _called("pick_rows", rows=rows, column=column, count=count)
    return rows[:count]


TOOLS = [
    read_csv,
    exchange_rate,
    get_weather,
    convert_units,
    send_email,
    delete_file,
    search_flights,
    create_event,
    stock_price,
    translate,
    summarise,
    pick_rows,
]
BOX = Toolbox(TOOLS)

SEEN: list[tuple[str, Calls | None]] = [
    ("Read sales.csv", [("read_csv", {"path": "sales.csv"})]),
    ("Get the exchange rate to NOK", [("exchange_rate", {"currency": "NOK"})]),
    ("Get the weather in Oslo and Rome.", [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Rome"})]),
    ("Convert 5 km to miles", [("convert_units", {"value": 5, "from_unit": "km", "to_unit": "miles"})]),
    ("Delete the old report", None),
    ("Delete the file old/report.txt", [("delete_file", {"path": "old/report.txt"})]),
    (
        "Search flights from Oslo to Rome on 2026-05-04",
        [("search_flights", {"origin": "Oslo", "destination": "Rome", "date": "2026-05-04"})],
    ),
    ("Get the price of the stock AAPL", [("stock_price", {"symbol": "AAPL"})]),
    ('Translate "Good morning" into French', [("translate", {"text": "Good morning", "language": "French"})]),
    ("Get the weather", None),
    (
        "Get the weather in Paris in fahrenheit",
        [("get_weather", {"city": "Paris", "unit": "fahrenheit"})],
    ),
    ("Send an email to ann@example.com", None),
    (
        'Send an email to ann@example.com with subject "Sales" and body "See you at noon"',
        [("send_email", {"to": "ann@example.com", "subject": "Sales", "body": "See you at noon"})],
    ),
    (
        "Get the weather in Lima, then translate it into Spanish",
        [("get_weather", {"city": "Lima"}), ("translate", {"text": "{s1}", "language": "Spanish"})],
    ),
    (
        "Read sales.csv and get the exchange rate to USD",
        [("read_csv", {"path": "sales.csv"}), ("exchange_rate", {"currency": "USD"})],
    ),
]

UNSEEN: list[tuple[str, Calls | None]] = [
    ("Could you read data/2024/orders.csv for me?", [("read_csv", {"path": "data/2024/orders.csv"})]),
    ("What is the exchange rate to Swedish kronor?", [("exchange_rate", {"currency": "SEK"})]),
    (
        "Get the weather in New York, Tokyo and São Paulo",
        [
            ("get_weather", {"city": "New York"}),
            ("get_weather", {"city": "Tokyo"}),
            ("get_weather", {"city": "São Paulo"}),
        ],
    ),
    ("Convert twelve miles to km, please", [("convert_units", {"value": 12, "from_unit": "miles", "to_unit": "km"})]),
    ("Delete it", None),
    (
        "Delete tmp.log and then delete notes.txt",
        [("delete_file", {"path": "tmp.log"}), ("delete_file", {"path": "notes.txt"})],
    ),
    (
        "I need to search flights from Berlin to New York on March 5th, 2026 in business class",
        [
            (
                "search_flights",
                {"origin": "Berlin", "destination": "New York", "date": "2026-03-05", "cabin": "business"},
            )
        ],
    ),
    ("Search flights from Oslo to Rome", None),
    (
        'Create an event "Dentist" on 2026-06-01 at 9:30 am',
        [("create_event", {"title": "Dentist", "date": "2026-06-01", "time": "09:30"})],
    ),
    (
        "Get the stock price of MSFT and get the stock price of NVDA",
        [("stock_price", {"symbol": "MSFT"}), ("stock_price", {"symbol": "NVDA"})],
    ),
    ("Convert to miles", None),
    (
        'Read sales.csv and pick the 5 rows with the largest values in the column "sales"',
        [("read_csv", {"path": "sales.csv"}), ("pick_rows", {"rows": "{s1}", "column": "sales", "count": 5})],
    ),
    (
        'Summarise "The cat sat. The dog ran." in one sentence',
        [("summarise", {"text": "The cat sat. The dog ran.", "sentences": 1})],
    ),
    ("Translate my last message", None),
    (
        'Get the weather in Cairo, summarise it, and send the summary to bob@example.org with subject "Cairo"',
        [
            ("get_weather", {"city": "Cairo"}),
            ("summarise", {"text": "{s1}"}),
            ("send_email", {"to": "bob@example.org", "subject": "Cairo", "body": "{s2}"}),
        ],
    ),
]
