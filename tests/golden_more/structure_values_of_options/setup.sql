CREATE TABLE t (id int PRIMARY KEY, x text, b bytea, v int);
ALTER TABLE t ALTER x SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL;
INSERT INTO t VALUES (1, repeat('long', 1500), decode(repeat('00', 5000), 'hex'), 1), (2, 'a', NULL, 2);
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
