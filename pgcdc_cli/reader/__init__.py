"""Read stored changes of any format back as JSON lines."""
