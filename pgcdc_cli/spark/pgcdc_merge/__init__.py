"""The merge job's own package, beside merge.py: it imports nothing else of pgcdc."""
