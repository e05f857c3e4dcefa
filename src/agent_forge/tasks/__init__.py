"""What can be practised and checked: task families, their checkers, and the judges of plans and calls."""
