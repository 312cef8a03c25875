-- changes
INSERT INTO people VALUES ('k', 'hellö', NULL, 7);
SELECT pg_logical_emit_message(true, 'p', 'x');
