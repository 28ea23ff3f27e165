"""From sources to memory-mapped ids: text, pairs, and a generated language."""
