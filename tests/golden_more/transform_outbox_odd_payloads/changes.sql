INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380000', 'Order', 0.5, 'T', '{"a": 1} x');
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380001', 'Order', 1.5, 'T', '{"a": 1}{"b": 2}');
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380002', 'Order', 2.5, 'T', '{"": 1}');
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380003', 'Order', 3.5, 'T', '{"a": {"": 1}}');
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380004', 'Order', 4.5, 'T', '{"": null, "a": 1}');
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380005', 'Order', 5.5, 'T', '{"a": [{"": 1}]}');
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380006', 'Order', 6.5, 'T', '{"": [], "a": 1}');
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380007', 'Order', 7.5, 'T', '{"a": 1,}');
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380008', 'Order', 8.5, 'T', '{"a": 1, "a": 2}');
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380009', 'Order', 9.5, 'T', '{"price": 1.50}');
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380010', 'Order', 10.5, 'T', '{"a": 1}x');
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380011', 'Order', 11.5, 'T', '{"a": ""}');
INSERT INTO outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380012', 'Order', 12.5, 'T', '{"a": "x:\"\":"}');
INSERT INTO outbox VALUES
    ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd381000', 'Order', 0.5, 'T', '{"a": 1} x'),
    ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd381001', 'Order', 1.5, 'T', '{"a": 1}{"b": 2}'),
    ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd381002', 'Order', 2.5, 'T', '{"": 1}'),
    ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd381003', 'Order', 3.5, 'T', '{"a": {"": 1}}'),
    ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd381004', 'Order', 4.5, 'T', '{"": null, "a": 1}'),
    ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd381005', 'Order', 5.5, 'T', '{"a": [{"": 1}]}'),
    ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd381006', 'Order', 6.5, 'T', '{"": [], "a": 1}'),
    ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd381007', 'Order', 7.5, 'T', '{"a": 1,}'),
    ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd381008', 'Order', 8.5, 'T', '{"a": 1, "a": 2}'),
    ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd381009', 'Order', 9.5, 'T', '{"price": 1.50}'),
    ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd381010', 'Order', 10.5, 'T', '{"a": 1}x'),
    ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd381011', 'Order', 11.5, 'T', '{"a": ""}'),
    ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd381012', 'Order', 12.5, 'T', '{"a": "x:\"\":"}');
