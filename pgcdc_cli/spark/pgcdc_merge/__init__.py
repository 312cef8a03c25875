"""The merge job's package, beside merge.py; it imports nothing else of pgcdc."""
