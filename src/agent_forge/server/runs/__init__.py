"""The agent API: start runs, follow, approve and cancel them, fetch their results."""
