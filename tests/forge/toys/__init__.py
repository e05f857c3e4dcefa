"""Phases for the tests of the pipeline."""
