-- setup
CREATE TABLE floats (k int PRIMARY KEY, d float8[], r real[], i interval);
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
