"""The tools of a small shop. Every function with @tool can be called by a plan or by an agent."""

from typing import Literal

from agent_forge import tool

Item = Literal["tea", "coffee", "cake"]
PRICES = {"tea": 2.5, "coffee": 3.0, "cake": 4.5}


@tool
def price(item: Item) -> float:
    """Get the price of an item, in euros."""
    return PRICES[item]


@tool
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


@tool(side_effects=True)
def order(item: Item, count: int = 1) -> str:
    """Order an item. It changes the world, so it waits for your approval."""
    return f"ordered: {count} x {item}"
