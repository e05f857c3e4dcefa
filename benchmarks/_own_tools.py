"""A catalogue of eight tools with requests written by hand, and another catalogue as a control."""

from __future__ import annotations

from typing import Any


def _tool(name: str, description: str, returns: list[str] | None = None, /, **parameters: Any) -> dict[str, Any]:
    """A function schema; a parameter is a JSON Schema, with "optional" where it may be left out."""
    properties = {
        key: {name: value for name, value in each.items() if name != "optional"} for key, each in parameters.items()
    }
    required = [key for key, each in parameters.items() if not each.get("optional")]
    schema = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": description, "parameters": schema} | ({"returns": returns} if returns else {})


TEXT, WHOLE = {"type": "string"}, {"type": "integer"}


def _choice(*values: str, optional: bool = False) -> dict[str, Any]:
    return {"type": "string", "enum": list(values), "optional": optional}


# A workshop that repairs bicycles
TOOLS = [
    _tool("open_job", "Open a repair job for a customer's bike", ["job_number"],
          customer=TEXT, bike=TEXT, fault={**TEXT, "description": "What is wrong with the bike"}),
    _tool("job_status", "Look up how far a repair job is", ["status", "customer"], job_number=WHOLE),
    _tool("close_job", "Close a finished repair job", job_number=WHOLE,
          paid_by=_choice("cash", "card", "invoice", optional=True)),
    _tool("find_part", "Find a spare part in the stock", ["part_number", "shelf"],
          part=TEXT, brand={**TEXT, "optional": True}),
    _tool("order_part", "Order a spare part from a supplier", part_number=TEXT, quantity=WHOLE),
    _tool("book_slot", "Book a slot on the work stand", day=TEXT,
          shift=_choice("morning", "afternoon"), mechanic={**TEXT, "optional": True}),
    _tool("text_customer", "Send a text message to a customer", customer=TEXT, message=TEXT),
    _tool("estimate_price", "Estimate the price of a kind of repair", ["price"],
          repair=TEXT, express={"type": "boolean", "optional": True}),
]  # fmt: skip


def _call(tool: str, **args: Any) -> dict[str, Any]:
    return {"tool": tool, "args": args}


def _result(number: int, field: str) -> dict[str, Any]:
    return {"ref": number, "field": field}


WRITTEN: list[tuple[str, list[dict[str, Any]]]] = [
    ("How far along is job 4412?", [_call("job_status", job_number=4412)]),
    ("Any news on repairs 88 and 91?", [_call("job_status", job_number=88), _call("job_status", job_number=91)]),
    ("Close number 307, they paid by card.", [_call("close_job", job_number=307, paid_by="card")]),
    ("We're done with 512, close it.", [_call("close_job", job_number=512)]),
    ("Do we have a chain from Shimano in stock?", [_call("find_part", part="chain", brand="Shimano")]),
    ("Look for a rear derailleur", [_call("find_part", part="rear derailleur")]),
    ("Get me 12 of part RD-200 from the supplier.", [_call("order_part", part_number="RD-200", quantity=12)]),
    ("Put Lena on the stand Tuesday morning", [_call("book_slot", day="Tuesday", shift="morning", mechanic="Lena")]),
    ("I need the stand on Friday afternoon.", [_call("book_slot", day="Friday", shift="afternoon")]),
    ("What would new brake pads cost, done express?",
     [_call("estimate_price", repair="new brake pads", express=True)]),
    ("How much is a wheel truing?", [_call("estimate_price", repair="wheel truing")]),
    ("Text Mara Jensen 'Your bike is ready'",
     [_call("text_customer", customer="Mara Jensen", message="Your bike is ready")]),
    ("New job for Tom Weiss: his Brompton has a broken spoke.",
     [_call("open_job", customer="Tom Weiss", bike="Brompton", fault="broken spoke")]),
    ("Mr Okafor came in with a Canyon Endurace, the gears slip. Open a job.",
     [_call("open_job", customer="Mr Okafor", bike="Canyon Endurace", fault="gears slip")]),
    ("Find an inner tube and order 5 of whatever number it has.",
     [_call("find_part", part="inner tube"),
      _call("order_part", part_number=_result(1, "part_number"), quantity=5)]),
    ("Close job 9 (cash) and close job 10 (invoice).",
     [_call("close_job", job_number=9, paid_by="cash"), _call("close_job", job_number=10, paid_by="invoice")]),
    ("Check the status of 77 and text Pia Roth 'we will call you'",
     [_call("job_status", job_number=77), _call("text_customer", customer="Pia Roth", message="we will call you")]),
    ("Book Monday morning for Ivo and Monday afternoon for Sam.",
     [_call("book_slot", day="Monday", shift="morning", mechanic="Ivo"),
      _call("book_slot", day="Monday", shift="afternoon", mechanic="Sam")]),
    ("Price of a bottom bracket swap, and is there a saddle by Brooks?",
     [_call("estimate_price", repair="bottom bracket swap"), _call("find_part", part="saddle", brand="Brooks")]),
    ("What's the weather like in Oslo?", []),
    ("Translate 'good morning' into French.", []),
    ("Which films are on at the cinema tonight?", []),
]  # fmt: skip

# The control: other tools of the same shapes
OTHERS = [
    _tool("register_guest", "Register a guest at the hotel", ["guest_id"],
          guest=TEXT, country=TEXT, wish={**TEXT, "description": "A special wish"}),
    _tool("room_state", "Look up the state of a room", ["state", "guest"], room=WHOLE),
    _tool("check_out", "Check a guest out of a room", room=WHOLE, paid_with=_choice("cash", "card", optional=True)),
    _tool("find_dish", "Find a dish on the menu", ["dish_code", "price"],
          dish=TEXT, cuisine={**TEXT, "optional": True}),
    _tool("send_to_room", "Send dishes to a room", dish_code=TEXT, portions=WHOLE),
    _tool("book_table", "Book a table in the restaurant", day=TEXT, meal=_choice("lunch", "dinner"),
          guest={**TEXT, "optional": True}),
    _tool("call_guest", "Leave a voice message for a guest", guest=TEXT, text=TEXT),
    _tool("tour_price", "Tell the price of a guided tour", ["price"], tour=TEXT,
          private={"type": "boolean", "optional": True}),
]  # fmt: skip
