"""Rung zero: what one device is asked before any scaling. What is seen is written down, and judged elsewhere."""
