INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380000', 'Order', '0', 'T', '{"n": 0}', 3);
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380001', 'Order', '1', 'T', '{"n": 1}', NULL);
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380002', 'Order', '2', 'T', '{"n": 2}', 4);
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380003', 'Order', '3', 'T', '{"n": 3}', NULL);
ALTER TABLE outbox ALTER version SET DEFAULT 5;
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380100', 'Order', '9', 'T', '{}', NULL);
