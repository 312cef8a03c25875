INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'Order', '1', 'OrderCreated', '{"id": 1, "lines": [{"id": 1, "name": "x\"y"}, {"id": 2}], "total": 12.50, "big": 12345678901, "none": null, "ok": true, "empty": [], "deep": {"a": {"b": [1, 2]}}}');
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12', 'Order', 'two', 'T', NULL), ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a13', 'Order', '3', 'T', '"text"'), ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a14', 'Order', '4', 'T', NULL), ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a15', 'Order', '5', 'T', '{}'), ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a16', 'Order', '6', 'T', '17'), ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a17', 'Order', '7', 'T', 'true'), ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a18', 'Order', '8', 'T', '{"m": ["x", null]}'), ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a19', 'Order', '9', 'T', '{"f": 1e3, "g": 0.1, "i": [null, 1], "j": [[1], [2, 3]], "k": [{"a": {"c": 1}}, {"a": {"c": 2}, "e": null}], "l": -0.0}');
UPDATE outbox SET type = 'U' WHERE aggregateid = '1';
UPDATE outbox SET id = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380b11' WHERE aggregateid = '1';
DELETE FROM outbox;
SELECT pg_logical_emit_message(true, 'p', 'inside');
INSERT INTO outbox SELECT ('a0eebc99-9c0b-4ef8-bb6d-' || lpad(n::text, 12, '0'))::uuid, 'Order', n, 'B', jsonb_build_object('n', n) FROM generate_series(1, 30) n;
