INSERT INTO clocks (id, d, t, t0, t3, t5, z, s, s0, s2, s3, s5, sz, iv) VALUES
 (1, '2024-02-29', '12:34:56.789012', '12:34:56.7', '12:34:56.789', '00:00:00.00001', '10:10:10.5+02', '2024-02-29 12:34:56.789012', '2024-02-29 12:34:56.7', '2024-02-29 12:34:56.789', '2024-02-29 12:34:56.78', '2024-02-29 12:34:56.00001', '2024-02-29 12:34:56.7+02', '1 day'),
 (2, '1969-12-31', '00:00:00', '00:00', '12:00:00.1', '12:00:01', '00:00+00', '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59', '1969-12-31 23:59:59.99', '1970-01-01 00:00:00', '1970-01-01 00:00:00.00001', 'epoch', '1 mon'),
 (3, '1582-10-04', '23:59:59.999999', '23:59:59', '23:59:59.999', '23:59:59.99999', '23:59:59.999999-12', '1582-10-04 00:00:01', '1582-10-15', '1500-02-28 12:00:00', '1000-01-01', '0001-01-01', '1500-01-01', '0'),
 (4, '0044-03-15 BC', '24:00:00', '24:00:00', '24:00:00', '24:00:00', '24:00:00+01', '0044-03-15 12:00:00 BC', '0001-01-01 BC', '4713-01-01 BC', '0044-03-15 12:00:00.123 BC', '0044-03-15 12:00:00 BC', '0044-03-15 BC', '-1 day'),
 (5, '9999-12-31', NULL, NULL, NULL, NULL, NULL, '9999-12-31 23:59:59.999999', '10000-01-01', '12345-06-07 08:09:10.11', '2262-04-11 23:47:16.854', '2262-04-11 23:47:16.85478', '12345-01-01', NULL),
 (6, '12345-06-07', NULL, NULL, NULL, NULL, NULL, '294276-12-31 23:59:59.999999', '294276-12-31', '1677-09-21 00:12:43.14', '1677-09-21 00:12:43.145', '1677-09-21 00:12:44', NULL, NULL),
 (7, 'infinity', NULL, NULL, NULL, NULL, NULL, 'infinity', 'infinity', 'infinity', 'infinity', 'infinity', 'infinity', NULL),
 (8, '-infinity', NULL, NULL, NULL, NULL, NULL, '-infinity', '-infinity', '-infinity', '-infinity', '-infinity', '-infinity', NULL),
 (9, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO clocks (id, da, ta, t2a, sa, s1a, za, tza, dr) VALUES
 (11, '{2024-02-29,NULL,1500-01-01}', '{12:34:56.789012,NULL,24:00:00}', '{12:34:56.78}', '{2024-02-29 12:34:56.789012,NULL}', '{2024-02-29 12:34:56.7}', '{2024-02-29 12:34:56.789012+02}', '{10:10:10.5+02}', '[2020-01-01,2020-02-01)'),
 (12, '{}', '{}', '{}', '{}', '{}', '{}', '{}', 'empty'),
 (13, '{0044-03-15 BC,infinity,-infinity}', '{00:00:00}', '{23:59:59.99}', '{0044-03-15 12:00:00.123456 BC,infinity,-infinity}', '{1969-12-31 23:59:59.9}', '{infinity}', '{00:00+00}', '(,2020-02-01)'),
 (14, '{{2024-02-29},{2024-03-01}}', '{{12:00:00},{13:00:00}}', NULL, '{{2024-02-29 12:34:56}}', NULL, NULL, NULL, NULL);
INSERT INTO required VALUES (1, '2024-02-29', '01:02:03.000004', '01:02:03.4', '2024-02-29 01:02:03', '2024-02-29 01:02:03.45', '{2024-02-29}', 'n');
INSERT INTO defaulted (id, d4, t4, s4) VALUES (1, '2020-01-01', '10:00', '2020-01-01 10:00:00');
INSERT INTO defaulted VALUES (2, NULL, '2024-01-01', NULL, NULL, NULL, '10:00', NULL, NULL, NULL, '2024-01-01', NULL, NULL, NULL, NULL, NULL, NULL);
UPDATE required SET n = 'm'; UPDATE required SET id = 2; DELETE FROM required;
INSERT INTO keyed VALUES ('2024-02-29', '01:02:03.45', '2024-02-29 01:02:03.456789'), ('2024-03-01', '01:02:03', '2024-02-29 00:00:00');
UPDATE keyed SET d = '2025-01-01'; DELETE FROM keyed;
UPDATE clocks SET iv = '1 year' WHERE id IN (1, 11); DELETE FROM clocks WHERE id = 1;
INSERT INTO toasted SELECT 1, 1, array_agg(date '2024-01-01' + g), array_agg(time '00:00' + g * interval '1 ms'), array_agg(timestamp '2024-01-01' + g * interval '1 s') FROM generate_series(1, 40) g;
INSERT INTO toasted SELECT 2, 1, array_agg(date '2024-01-01' + g), NULL, NULL FROM generate_series(1, 3000) g;
INSERT INTO toasted SELECT 3, 1, NULL, array_agg(time '00:00' + g * interval '1 ms'), NULL FROM generate_series(1, 1500) g;
INSERT INTO toasted SELECT 4, 1, NULL, NULL, array_agg(timestamp '2024-01-01' + g * interval '1 s') FROM generate_series(1, 1500) g;
UPDATE toasted SET n = 2;
