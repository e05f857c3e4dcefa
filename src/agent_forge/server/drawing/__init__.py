"""How figures are written and drawn: words, graphs in layers, charts and waterfalls, as text and SVG."""
