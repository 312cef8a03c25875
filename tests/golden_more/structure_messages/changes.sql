SELECT pg_logical_emit_message(true,'keep','a'); SELECT pg_logical_emit_message(false,'keep','b'); SELECT pg_logical_emit_message(true,'keepmore','c'); SELECT pg_logical_emit_message(false,'drop','d');
INSERT INTO t VALUES (1,'x');
BEGIN; SELECT pg_logical_emit_message(true,'a.b','1'); INSERT INTO t VALUES (2,'y'); SELECT pg_logical_emit_message(false,'KEEP','2'); SELECT pg_logical_emit_message(true,'drop it','3'); SELECT pg_logical_emit_message(true,'drop','4'); UPDATE t SET v='z'; COMMIT;
SELECT pg_logical_emit_message(true,'axb','\x00ff0a0d'::bytea); SELECT pg_logical_emit_message(true,'q"uote\b','{"a":1}'); SELECT pg_logical_emit_message(false,'keep',repeat('long ',400)); SELECT pg_logical_emit_message(true,'','none');
BEGIN; SELECT pg_logical_emit_message(false,'keep','rolled'); ROLLBACK; DELETE FROM t; BEGIN; SAVEPOINT s; SELECT pg_logical_emit_message(true,'keep','gone'); ROLLBACK TO s; SELECT pg_logical_emit_message(true,'keep','stays'); COMMIT; INSERT INTO t VALUES (5,'end');
SELECT pg_logical_emit_message(false,'drop','unseen'); INSERT INTO t VALUES (6,'end');
