-- setup
CREATE TABLE people (id text PRIMARY KEY, name text NOT NULL, note text, number int);
INSERT INTO people VALUES ('k', 'hellö', NULL, 7);
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
