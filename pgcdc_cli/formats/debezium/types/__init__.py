"""PostgreSQL's types as Debezium's connector writes them: Connect schemas, and values as JSON tokens."""
