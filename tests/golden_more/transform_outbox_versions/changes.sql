INSERT INTO outbox2 VALUES (1, 'Order', 11, 'OrderCreated', '{"a": 1}', 'tenant "1"', '2026-01-02 03:04:05.678901+00', 1, 3, 0), (2, 'Order', 12, 'OrderCreated', '', NULL, NULL, NULL, 3, 1), (3, 'cust.omer', NULL, 'OrderCreated', NULL, 't', NULL, DEFAULT, 3, NULL), (4, 'Order', 14, 'OrderCreated', '   ', 't', '2026-01-02', 4, 3, 4), (5, 'Order', 15, 'OrderCreated', 'plain', 't', '2026-01-02', 4, 3, 4);
UPDATE outbox2 SET id = 10, n = 99 WHERE id = 1;
DELETE FROM outbox2 WHERE id = 2;
INSERT INTO outbox2 SELECT n, 'bulk', n, 'OrderCreated', CASE n % 4 WHEN 0 THEN '' WHEN 1 THEN NULL ELSE 'p' || n END, 't', now(), n, 3 FROM generate_series(101, 130) n;
