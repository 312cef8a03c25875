-- setup
CREATE TABLE people (id text PRIMARY KEY, name text NOT NULL, note text, number int);
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
