"""Reads back what pgcdc wrote, one JSON line for each change, whatever the files hold."""
