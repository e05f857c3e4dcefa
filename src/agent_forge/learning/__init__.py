"""How does the next try get better? Rows to learn from, and the training of planners and agents on them."""
