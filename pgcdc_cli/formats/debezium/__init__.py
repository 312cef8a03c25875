"""Debezium's event stream: what its PostgreSQL connector and Kafka's JsonConverter would write."""
