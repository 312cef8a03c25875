CREATE TABLE customers (id serial PRIMARY KEY, name text NOT NULL, email text DEFAULT 'none', amount numeric(10,2), region text, note text);
ALTER TABLE customers ALTER COLUMN note SET STORAGE EXTERNAL;
CREATE TABLE whole (id int PRIMARY KEY, name text NOT NULL DEFAULT 'n', region text, n int DEFAULT 7, doc jsonb);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE no_key (a int, region varchar(10), "Odd ""name""" text);
ALTER TABLE no_key REPLICA IDENTITY FULL;
INSERT INTO whole VALUES (100, 'old', 'r', NULL, NULL), (101, 'old2', '', 1, '{}');
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
