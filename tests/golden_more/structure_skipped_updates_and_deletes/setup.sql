-- setup
CREATE TABLE people (id text PRIMARY KEY, name text NOT NULL, note text, number int);
ALTER TABLE people REPLICA IDENTITY FULL;
INSERT INTO people VALUES ('a', 'x', NULL, 1), ('b', 'x', NULL, 1);
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
