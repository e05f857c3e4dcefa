"""The agent API: start a run, follow it, approve, cancel, fetch what came of it."""
