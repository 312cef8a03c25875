INSERT INTO t VALUES (9, 'nine');
BEGIN; INSERT INTO t VALUES (8, 'eight'); SELECT pg_logical_emit_message(true, 'p', 'one'); INSERT INTO t VALUES (1, 'a'); SELECT pg_logical_emit_message(false, 'p', 'beside'); SELECT pg_logical_emit_message(true, 'p', 'two'); UPDATE t SET id = 2 WHERE id = 1; SELECT pg_logical_emit_message(true, 'left', 'out'); INSERT INTO t VALUES (3, 'b'); COMMIT;
SELECT pg_logical_emit_message(false, 'p', 'alone');
SELECT pg_logical_emit_message(true, 'p', 'alone');
INSERT INTO t VALUES (4, 'c');
BEGIN; INSERT INTO t SELECT n, 'many' FROM generate_series(101, 130) n; SELECT pg_logical_emit_message(true, 'p', 'm' || n) FROM generate_series(1, 3) n; DELETE FROM t WHERE id > 100; COMMIT;
