"""Figures as text and SVG: numbers, graphs in layers, and charts."""
