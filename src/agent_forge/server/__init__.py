"""Serve and see: the model API, the agent API, the intake of traces, metrics and the dashboard."""
